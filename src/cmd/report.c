// What a process reports: to its peers that it is at work (dt_report_set_comm), to the user how it
// ends on an error. An error that all ranks have is printed by rank 0 (dt_report) before main
// returns; a rank that fails alone writes its last words, notes them in the run's folder and ends
// the job (dt_report_die, which dt_die calls). An alarm limits how long a file system may delay
// either.
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
static const double claim_s = 0.3;  // the same, before the last words are written
static const double early_s = 0.05; // how early an alarm may come

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

static char words[2 * (DT_ERROR_MESSAGE + DT_ERROR_HINT)]; // this rank's last words
static char lines[3 * sizeof words];                       // as they are written
static atomic_int n_lines;                                 // bytes of them to be written
static _Atomic double patient_until;                       // in dt_seconds

// Writes the last words once: by the signal handler or by the thread that it interrupts.
static bool write_words(void)
{
    int bytes = atomic_exchange(&n_lines, 0);
    ssize_t n = bytes > 0 ? write(STDERR_FILENO, lines, (size_t)bytes) : 0;
    (void)n; // maybe nobody listens: state.json has it
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

// The handler of the alarm: a file system that hangs must delay neither the last words nor the end
// of the job. An alarm that comes just after its work was done does nothing: a new limit is set by
// then.
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

// Leaves the reason in state.json.
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
    bool debug = getenv("DTRAIN_DEBUG"); // errors show where in the source they passed
    dt_log_live(NULL);
    dt_log_quiet(true); // nothing may follow the last words
    if (!communicator) {
        dt_error_print(error, debug);
        _exit((int)error->code);
    }
    if (dt_comm_last_words(communicator, error, debug, words, sizeof words) > 0) {
        dt_append_wrapped(lines, sizeof lines, words, 0, DT_LOG_INDENT, dt_log_columns());
        atomic_store(&n_lines, (int)strlen(lines));
        // Two ranks that the watch could not connect (all links between them led over dead ranks,
        // or one was suspended) agree through the run's folder: the first one writes its words. A
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
            sleep(1); // for the other to finish
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
