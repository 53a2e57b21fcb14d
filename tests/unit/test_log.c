// Tests messages and the live line through a pseudo-terminal and through a pipe in place of stderr.
#include "base/log.h"
#include "captured.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLEAR "\r\033[K"

static void test_pipe(void)
{
    char seen[2][256];
    capture_stderr();
    dt_info("step %d of %s", 3, "ten");
    dt_warn("slow");
    snprintf(seen[0], sizeof seen[0], "%s", drain(captured_ends[0]));
    dt_log_live("a live line");
    snprintf(seen[1], sizeof seen[1], "%s", drain(captured_ends[0]));
    dt_log_quiet(true);
    dt_warn("unseen");
    dt_log_quiet(false);
    CHECK(!dt_log_is_terminal(), "a pipe is no terminal");
    CHECK_STR(captured(), "");
    CHECK_STR(seen[0], "dtrain: step 3 of ten\ndtrain: warning: slow\n");
    CHECK_STR(seen[1], "");
}

static void test_long_message(void)
{
    static char word[8000];
    memset(word, 'w', sizeof word - 1);
    capture_stderr();
    dt_info("%s", word);
    CHECK_INT(strlen(captured()), sizeof word - 1 + strlen("dtrain: \n"));
}

// Opens both ends of a terminal of 12 columns that shows bytes unchanged.
static bool open_terminal(int *master, int *terminal)
{
    struct winsize window = {.ws_row = 5, .ws_col = 12};
    *master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (*master < 0 || grantpt(*master) != 0 || unlockpt(*master) != 0)
        return false;
    *terminal = open(ptsname(*master), O_RDWR | O_NOCTTY);
    return *terminal >= 0 && ioctl(*terminal, TIOCSWINSZ, &window) == 0;
}

static void check_shown(int master, const char *want)
{
    char seen[1024];
    snprintf(seen, sizeof seen, "%s", drain(master));
    restore_stderr();
    CHECK_STR(seen, want);
}

static bool test_terminal(void)
{
    int master, terminal;
    if (!open_terminal(&master, &terminal))
        return false;
    replace_stderr(terminal);
    dt_log_live("loss 1.5");
    check_shown(master, CLEAR "loss 1.5");

    replace_stderr(terminal); // the message is above the live line, which is shown again
    dt_info("saved");
    check_shown(master, CLEAR "dtrain: saved\r\nloss 1.5");

    replace_stderr(
        terminal); // one column less than the terminal has, whole characters, no control characters
    dt_log_live("\xc3\xa9t\xc3\xa9\n3456789abcdef");
    check_shown(master, CLEAR "\xc3\xa9t\xc3\xa9 3456789");

    replace_stderr(terminal);
    dt_log_live(NULL);
    dt_log_live(NULL); // there is nothing to clear
    dt_info("bye");
    check_shown(master, CLEAR "dtrain: bye\r\n");
    close(terminal);
    close(master);
    return true;
}

// A rank under mpirun writes to a pipe of its parent, which has a terminal. The rank's lines are as
// wide as that terminal, and every check of the width closes what it opened.
static bool test_launchers_terminal(void)
{
    int master, terminal, status;
    if (!open_terminal(&master, &terminal))
        return false;
    replace_stderr(terminal);
    pid_t child = fork();
    if (child == 0) {
        bool right = true;
        setenv("OMPI_COMM_WORLD_RANK", "0", 1);
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        int next = dup(STDERR_FILENO);
        close(next);
        for (int i = 0; i < 3; i++)
            right &= dt_log_is_terminal() && dt_log_columns() == DT_LOG_LEAST_COLUMNS;
        _exit(right ? dup(STDERR_FILENO) - next : 255);
    }
    waitpid(child, &status, 0);
    restore_stderr();
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    close(terminal);
    close(master);
    return true;
}

#define TAIL " says a line that is long enough to be torn apart"

static void *log_often(void *name)
{
    for (int i = 0; i < 50; i++)
        dt_info("%s" TAIL, (const char *)name);
    return NULL;
}

static void test_assumed(void)
{
    capture_stderr();
    dt_log_assume_terminal();
    CHECK(dt_log_is_terminal(), "told so");
    dt_log_live("loss 1.5");
    CHECK_STR(captured(), CLEAR "loss 1.5");
}

static bool is_whole(const char *line)
{
    return strncmp(line, "dtrain: ", 8) == 0 && line[8] && strcmp(line + 9, TAIL) == 0;
}

static void test_threads(void)
{
    static char names[4][2] = {"a", "b", "c", "d"};
    pthread_t threads[4];
    int lines = 0;
    char *text, *line, *rest;
    capture_stderr();
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, log_often, names[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    text = strdup(captured());
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), lines++)
        CHECK(is_whole(line), "torn: '%s'", line);
    CHECK_INT(lines, 200);
    free(text);
}

static void test_due(void)
{
    double next = 0;
    CHECK(!dt_log_due(&next), "a line at the beginning");
    CHECK(!dt_log_due(&next), "a line before 2 s");
    next -= 2;
    CHECK(dt_log_due(&next), "no line after 2 s");
    CHECK(!dt_log_due(&next), "a second line at once");
}

int main(void)
{
    test_pipe();
    test_long_message();
    test_due();
    if (!test_terminal() || !test_launchers_terminal())
        fprintf(stderr, "no pseudo-terminal here: the live line was not tested\n");
    test_threads();
    test_assumed(); // cannot be undone
    return test_end();
}
