// What a process reports: to its peers that it is at work, to the user how it ends on an error.
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
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

enum { PATIENCE_S = 5 };            // with a file system, at the end
static const double claim_s = 0.3;  // the same, until the last words come out
static const double early_s = 0.05; // that an alarm may come before its time

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

static char words[2 * (DT_ERROR_MESSAGE + DT_ERROR_HINT)]; // the last ones of this rank
static atomic_int n_words;                                 // not written yet
static _Atomic double patient_until;                       // of dt_seconds

// Once: whoever comes first, the handler or the thread that it interrupts, writes them.
static bool write_words(void)
{
    int bytes = atomic_exchange(&n_words, 0);
    ssize_t n = bytes > 0 ? write(STDERR_FILENO, words, (size_t)bytes) : 0;
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

// A file system that hangs must not keep the words from coming out, nor the job from ending. An
// alarm that comes as what it was set for is done does nothing: there is patience again.
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

// Two ranks that the watch could not bring together (all links between them led over the dead, or
// one was suspended) meet in the run's folder: the first one of a host speaks. A launcher leaves
// little time.
static void speak(dt_status code)
{
    begin_end(code, claim_s);
    bool claimed = dt_run_folder_claim_end();
    wait_patiently(PATIENCE_S);
    if (!claimed) {
        atomic_store(&n_words, 0);
        alarm(0);
        sleep(1); // for the other to finish
        return;
    }
    write_words();
    note_end(words + strlen(DT_LAST_WORDS_BEGIN), code);
}

void dt_report_die(const struct dt_error *error)
{
    dt_log_live(NULL);
    dt_log_quiet(true); // nothing may follow the last words
    if (!communicator) {
        dt_error_print(error, wants_debug());
        _exit((int)error->code);
    }
    int bytes = (int)dt_comm_last_words(communicator, error, wants_debug(), words, sizeof words);
    atomic_store(&n_words, bytes);
    if (bytes > 0)
        speak(error->code);
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
