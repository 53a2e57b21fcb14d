// Tests the error record (raising, frames, moving it between threads, its text) and how dt_die ends
// the process.
#include "base/error.h"
#include "captured.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static dt_status origin(int value)
{
    return DT_FAIL(DT_USER, "give a positive number", "steps is %d", value);
}

static dt_status middle(int value)
{
    DT_TRY(origin(value));
    return DT_OK;
}

static dt_status outer(const char *path)
{
    DT_TRY_NOTE(middle(-3), "reading %s", path);
    return DT_OK;
}

static void test_frames(void)
{
    const struct dt_error *error = dt_error_current();
    char text[512];
    CHECK_INT(outer("a.ini"), DT_USER);
    CHECK_INT(error->code, DT_USER);
    CHECK_STR(error->message, "steps is -3");
    CHECK_STR(error->hint, "give a positive number");
    CHECK_INT(error->n_frames, 3);
    CHECK_STR(error->frames[0].function, "origin");
    CHECK_STR(error->frames[1].function, "middle");
    CHECK_STR(error->frames[2].function, "outer");
    CHECK_STR(error->frames[2].note, "reading a.ini");
    dt_error_format(error, 0, text, sizeof text);
    CHECK_STR(text, "steps is -3\n  while reading a.ini\n  hint: give a positive number\n");
    dt_error_format(error, 1, text, sizeof text);
    CHECK(strstr(text, "test_error.c:") && strstr(text, " in middle\n"), "%s", text);
    CHECK_INT(dt_error_during_run(DT_USER), DT_MACHINE); // the code that a rank returns and reports
    CHECK_INT(error->code, DT_MACHINE);
    dt_error_clear();
    CHECK_OK(error->code);
}

static dt_status recurse(int depth)
{
    if (depth == 0)
        return origin(0);
    DT_TRY(recurse(depth - 1));
    return DT_OK;
}

static dt_status quote(void)
{
    const struct dt_error *now = dt_error_current();
    return DT_FAIL(DT_MACHINE, now->hint, "again: %s", now->message);
}

static void test_limits(void)
{
    const struct dt_error *error = dt_error_current();
    char text[32], huge[3 * DT_ERROR_MESSAGE];
    recurse(3 * DT_ERROR_FRAMES);
    CHECK_INT(error->n_frames, DT_ERROR_FRAMES);
    CHECK_STR(error->frames[0].function, "origin");

    CHECK_INT(quote(), DT_MACHINE); // a new error may quote the one that it replaces
    CHECK_STR(error->message, "again: steps is 0");
    CHECK_STR(error->hint, "give a positive number");
    CHECK_INT(error->n_frames, 1);

    CHECK_INT(dt_error_format(error, 0, text, sizeof text), sizeof text - 1);
    CHECK_INT(strlen(text), sizeof text - 1);
    CHECK_INT(text[sizeof text - 2], '\n');
    CHECK_INT(dt_error_format(error, 0, text, 1), 0);
    CHECK_INT(text[0], 0);

    memset(huge, 'x', sizeof huge);
    huge[sizeof huge - 1] = 0;
    DT_FAIL(DT_USER, huge, "%s", huge);
    CHECK_INT(strlen(error->message), DT_ERROR_MESSAGE - 1);
    CHECK_INT(strlen(error->hint), DT_ERROR_HINT - 1);

    dt_error_clear();
    CHECK_INT(dt_error_push(DT_MACHINE, __FILE__, __LINE__, __func__, "waiting"), DT_MACHINE);
    CHECK_STR(error->message, "waiting failed without a message");
    dt_error_clear();
    CHECK_OK(dt_error_push(DT_OK, __FILE__, __LINE__, __func__, NULL));
    CHECK_OK(error->code);
}

static void *fail_elsewhere(void *moved)
{
    outer("b.ini");
    dt_error_take(moved);
    CHECK_OK(dt_error_current()->code);
    return NULL;
}

static void test_threads(void)
{
    static struct dt_error moved;
    pthread_t thread;
    DT_FAIL(DT_MACHINE, NULL, "mine");
    pthread_create(&thread, NULL, fail_elsewhere, &moved);
    pthread_join(thread, NULL);
    CHECK_STR(dt_error_current()->message, "mine"); // each thread has its own record
    CHECK_INT(dt_error_restore(&moved), DT_USER);
    CHECK_STR(dt_error_current()->frames[2].note, "reading b.ini");
    dt_error_clear();
}

// Runs `body` in a child and returns its exit code, or -1. *text receives what it wrote to stderr.
static int run_child(void (*body)(void), const char **text)
{
    capture_stderr();
    int end = in_child(body);
    *text = captured();
    return WIFEXITED(end) ? WEXITSTATUS(end) : -1;
}

static void die_plainly(void)
{
    outer("c.ini");
    dt_die();
}

static void last_act(const struct dt_error *error)
{
    char text[256];
    int n = snprintf(text, sizeof text, "[%s]", error->message);
    if (write(STDERR_FILENO, text, (size_t)n) < 0)
        _exit(98);
    usleep(200 * 1000); // other threads have time to pass dt_die, if they can
}

static void *die_thread(void *unused)
{
    (void)unused;
    DT_FAIL(DT_MACHINE, NULL, "one");
    dt_die();
}

static void die_by_many(void)
{
    pthread_t threads[8];
    dt_die_register(last_act);
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, die_thread, NULL);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static void die_again(const struct dt_error *error)
{
    (void)error;
    dt_die();
}

static void die_in_last_act(void)
{
    dt_die_register(die_again);
    outer("d.ini");
    dt_die();
}

static void test_die(void)
{
    const char *text;
    CHECK_INT(run_child(die_plainly, &text), 2);
    CHECK_STR(text, "dtrain: error: steps is -3\n  while reading c.ini\n"
                    "  hint: give a positive number\n");
    CHECK_INT(run_child(dt_die, &text), 3);
    CHECK(strstr(text, "without a message"), "%s", text);
    CHECK_INT(run_child(die_by_many, &text), 3);
    CHECK_STR(text, "[one]");
    CHECK_INT(run_child(die_in_last_act, &text), 2);
}

int main(void)
{
    RUN(test_frames, test_limits, test_threads, test_die);
    return test_end();
}
