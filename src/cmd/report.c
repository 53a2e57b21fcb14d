// Reports of a process: progress to its peers (dt_report_set_comm), and to the user how it ends on
// an error. Rank 0 prints an error that all ranks have (dt_report) before main returns. A rank that
// fails alone writes its message, notes it in the run's folder and ends the job (dt_report_die,
// called by dt_die). An alarm limits how long a file system may delay either.
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cmd/cmd.h"
#include "comm/job_control.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static struct dt_comm *communicator;
static atomic_int exit_code;

enum { PATIENCE_S = 5 };            // how long a file system may take at the end
static const double claim_s = 0.3;  // the same before the message is written
static const double early_s = 0.05; // by how much an alarm may be early

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

static char words[2 * (DT_ERROR_MESSAGE + DT_ERROR_HINT)]; // this rank's message
static char lines[3 * sizeof words];                       // as written
static atomic_int n_lines;                                 // bytes of lines to write
static _Atomic double patient_until;                       // in dt_seconds

// Writes the message once, in the signal handler or in the thread that it interrupts.
static bool write_words(void)
{
    int bytes = atomic_exchange(&n_lines, 0);
    ssize_t n = bytes > 0 ? write(STDERR_FILENO, lines, (size_t)bytes) : 0;
    (void)n; // if stderr is closed, state.json has it
    return bytes > 0;
}

static void wait_patiently(double seconds)
{
    struct itimerval delay = {
        .it_value = {.tv_sec = (time_t)seconds,
                     .tv_usec = (suseconds_t)(1e6 * (seconds - (double)(time_t)seconds))}};
    atomic_store(&patient_until, dt_seconds() + seconds - early_s);
    setitimer(ITIMER_REAL, &delay, NULL);
}

// The handler of the alarm: a hanging file system must delay neither the message nor the end of the
// job. An alarm just after the work was done does nothing, because a new limit is set by then.
static void lose_patience(int signal)
{
    (void)signal;
    if (write_words())
        wait_patiently(PATIENCE_S);
    else if (dt_seconds() > atomic_load(&patient_until))
        _exit(atomic_load(&exit_code));
}

static void begin_end(dt_status code, double patience_s)
{
    atomic_store(&exit_code, (int)code);
    signal(SIGALRM, lose_patience);
    wait_patiently(patience_s);
}

// Writes the reason to state.json.
static void note_end(const char *reason, dt_status code)
{
    char line[DT_ERROR_MESSAGE];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(reason, "\n"), reason);
    begin_end(code, PATIENCE_S);
    dt_run_folder_note_end(line);
    alarm(0);
}

void dt_report_die(const struct dt_error *error)
{
    bool debug = getenv("DTRAIN_DEBUG"); // errors show their path through the source
    dt_log_live(NULL);
    dt_log_quiet(true); // nothing may follow the message
    if (!communicator) {
        dt_error_print(error, debug);
        _exit((int)error->code);
    }
    if (dt_comm_last_words(communicator, error, debug, words, sizeof words) > 0) {
        dt_append_wrapped(lines, sizeof lines, words, 0, DT_LOG_INDENT, dt_log_columns());
        atomic_store(&n_lines, (int)strlen(lines));
        // Ranks that the watch could not connect (all links between them led over dead ranks, or
        // one was suspended) agree through the run's folder: the first one writes its message. A
        // launcher leaves little time for this.
        begin_end(error->code, claim_s);
        bool claimed = dt_run_folder_claim_end();
        wait_patiently(PATIENCE_S);
        if (claimed) {
            write_words();
            note_end(words + strlen(DT_LAST_WORDS_BEGIN), error->code);
        } else {
            atomic_store(&n_lines, 0);
            alarm(0);
            sleep(1); // let the other finish
        }
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
    dt_error_print(dt_error_current(), getenv("DTRAIN_DEBUG") != NULL);
    note_end(dt_error_current()->message, status);
}
