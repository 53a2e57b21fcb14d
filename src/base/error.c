// The error record of each thread. dt_die ends the process once: the first caller runs the
// registered function, and later callers wait for the end.
#include "base/error.h"

#include "base/log.h"
#include "base/text.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local struct dt_error current;
static _Thread_local bool ending_here; // this thread runs dt_die
static atomic_flag ending = ATOMIC_FLAG_INIT;
static _Atomic(void (*)(const struct dt_error *)) last_act;

static void add_frame(const char *file, int line, const char *function, const char *note)
{
    struct dt_error_frame *frame;
    if (current.n_frames == DT_ERROR_FRAMES) // keep the origin, drop the outermost levels
        return;
    frame = &current.frames[current.n_frames++];
    frame->file = file;
    frame->function = function;
    frame->line = line;
    snprintf(frame->note, sizeof frame->note, "%s", note);
}

dt_status dt_error_raise(dt_status code, const char *file, int line, const char *function,
                         const char *hint, const char *format, ...)
{
    // Format both before changing the record, since they may quote the old record.
    char message[DT_ERROR_MESSAGE], advice[DT_ERROR_HINT];
    DT_PRINT_ARGUMENTS(message, sizeof message, format);
    snprintf(advice, sizeof advice, "%s", hint ? hint : "");

    current.code = code;
    memcpy(current.message, message, sizeof message);
    memcpy(current.hint, advice, sizeof advice);
    current.n_frames = 0;
    add_frame(file, line, function, "");
    return code;
}

dt_status dt_error_push(dt_status status, const char *file, int line, const char *function,
                        const char *format, ...)
{
    char note[sizeof current.frames[0].note] = "";
    if (status == DT_OK)
        return status;
    if (format) {
        DT_PRINT_ARGUMENTS(note, sizeof note, format);
    }
    if (current.code == DT_OK) // a status from another thread, without its record
        dt_error_raise(status, file, line, function, NULL, "%s failed without a message",
                       note[0] ? note : function);
    else
        add_frame(file, line, function, note);
    return status;
}

dt_status dt_error_during_run(dt_status status)
{
    if (status != DT_USER)
        return status;
    current.code = DT_MACHINE;
    return DT_MACHINE;
}

const struct dt_error *dt_error_current(void)
{
    return &current;
}

void dt_error_take(struct dt_error *out)
{
    *out = current;
    dt_error_clear();
}

dt_status dt_error_restore(const struct dt_error *error)
{
    current = *error;
    return current.code;
}

void dt_error_clear(void)
{
    current.code = DT_OK;
    current.message[0] = current.hint[0] = 0;
    current.n_frames = 0;
}

size_t dt_error_format(const struct dt_error *error, int debug, char *text, size_t size)
{
    if (size == 0)
        return 0;
    snprintf(text, size, "%s\n", error->message);
    for (int i = 0; i < error->n_frames; i++) {
        const struct dt_error_frame *frame = &error->frames[i];
        if (frame->note[0])
            dt_append(text, size, "  while %s\n", frame->note);
        if (debug)
            dt_append(text, size, "  at %s:%d in %s\n", frame->file, frame->line, frame->function);
    }
    if (error->hint[0])
        dt_append(text, size, "  hint: %s\n", error->hint);
    size_t used = strlen(text);
    if (used == size - 1 && used > 0) // truncated: keep the final newline
        text[used - 1] = '\n';
    return used;
}

void dt_die_register(void (*die)(const struct dt_error *error))
{
    atomic_store(&last_act, die);
}

void dt_error_print(const struct dt_error *error, int debug)
{
    static const char prefix[] = "dtrain: error: ";
    char text[sizeof prefix + 2 * sizeof(struct dt_error)];
    const size_t most = 3 * sizeof text;
    char *lines = malloc(most); // too large for a small stack
    size_t size = sizeof prefix - 1;
    memcpy(text, prefix, size);
    size += dt_error_format(error, debug, text + size, sizeof text - size);
    if (lines) {
        lines[0] = 0;
        dt_append_wrapped(lines, most, text, 0, DT_LOG_INDENT, dt_log_columns());
        size = strlen(lines);
    }
    ssize_t written = write(STDERR_FILENO, lines ? lines : text, size);
    free(lines);
    if (written < 0) // there is nowhere to report this
        return;
}

_Noreturn void dt_die(void)
{
    void (*die)(const struct dt_error *) = atomic_load(&last_act);
    if (ending_here) // the registered function itself failed
        _exit(current.code == DT_OK ? DT_MACHINE : (int)current.code);
    if (atomic_flag_test_and_set(&ending))
        for (;;)
            pause();
    ending_here = true;
    if (current.code == DT_OK)
        DT_FAIL(DT_MACHINE, NULL, "the program ended on an error without a message");
    if (die)
        die(&current);
    else
        dt_error_print(&current, 0);
    // Not exit(), whose handlers would run while other threads still work.
    _exit((int)current.code);
}
