// What a process reports: to its peers that it is at work, to the user how it ends on an error.
#include "base/file.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "comm/job_control.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dt_comm *communicator;
static volatile sig_atomic_t exit_code;

static void report_busy(void)
{
    if (communicator)
        dt_comm_busy(communicator);
}

void dt_report_set_comm(struct dt_comm *comm)
{
    communicator = comm;
    dt_file_on_progress(report_busy);
}

// DTRAIN_DEBUG set: errors show where in the source they passed.
static bool wants_debug(void)
{
    return getenv("DTRAIN_DEBUG") != NULL;
}

static void give_up(int signal)
{
    (void)signal;
    _exit(exit_code);
}

// Leaves the reason in state.json. A file system that hangs must not keep the job from ending.
static void note_end(const char *reason, dt_status code)
{
    enum { PATIENCE_S = 5 };
    char line[DT_ERROR_MESSAGE];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(reason, "\n"), reason);
    exit_code = (int)code;
    signal(SIGALRM, give_up);
    alarm(PATIENCE_S);
    dt_run_folder_note_end(line);
    alarm(0);
}

void dt_report_die(const struct dt_error *error)
{
    static char text[2 * (DT_ERROR_MESSAGE + DT_ERROR_HINT)];
    dt_log_live(NULL);
    if (!communicator) {
        dt_error_print(error, wants_debug());
        _exit((int)error->code);
    }
    size_t length = dt_comm_last_words(communicator, error, wants_debug(), text, sizeof text);
    if (length > 0) {
        ssize_t n = write(STDERR_FILENO, text, length); // maybe nobody listens: state.json has it
        (void)n;
        note_end(text + strlen(DT_LAST_WORDS_BEGIN), error->code);
    }
    dt_comm_abort(communicator, (int)error->code);
}

void dt_report(dt_status status)
{
    static bool reported;
    if (status == DT_OK || reported)
        return;
    reported = true;
    if (communicator && communicator->info.rank != 0)
        return;
    dt_log_live(NULL);
    dt_error_print(dt_error_current(), wants_debug());
    note_end(dt_error_current()->message, status);
}
