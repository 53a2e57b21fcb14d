// What a process reports: to its peers that it is at work, to the user how it ends on an error.
#include "base/file.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "comm/job_control.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static struct dt_comm *communicator;
static volatile sig_atomic_t exit_code;

enum { PATIENCE_S = 5 }; // with a file system, at the end

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
static volatile sig_atomic_t n_words;                      // not written yet

static void write_words(void)
{
    ssize_t n = write(STDERR_FILENO, words, (size_t)n_words); // maybe nobody listens:
    (void)n;                                                  // state.json has it
    n_words = 0;
}

// A file system that hangs must not keep the words from coming out, nor the job from ending.
static void lose_patience(int signal)
{
    (void)signal;
    if (n_words == 0)
        _exit(exit_code);
    write_words();
    alarm(PATIENCE_S);
}

// `delay_us`: microseconds until this process loses patience.
static void begin_end(dt_status code, suseconds_t delay_us)
{
    struct itimerval delay = {
        .it_value = {.tv_sec = delay_us / 1000000, .tv_usec = delay_us % 1000000}};
    exit_code = (int)code;
    signal(SIGALRM, lose_patience);
    setitimer(ITIMER_REAL, &delay, NULL);
}

// Leaves the reason in state.json.
static void note_end(const char *reason, dt_status code)
{
    char line[DT_ERROR_MESSAGE];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(reason, "\n"), reason);
    begin_end(code, PATIENCE_S * 1000000);
    dt_run_folder_note_end(line);
    alarm(0);
}

// Two ranks that the watch could not bring together (all links between them led over the dead, or
// one was suspended) meet in the run's folder: the first one of a host speaks. A launcher leaves
// little time.
static void speak(dt_status code)
{
    begin_end(code, 300000);
    if (!dt_run_folder_claim_end()) {
        n_words = 0;
        alarm(0);
        sleep(1); // for the other to finish
        return;
    }
    if (n_words > 0)
        write_words();
    note_end(words + strlen(DT_LAST_WORDS_BEGIN), code);
}

void dt_report_die(const struct dt_error *error)
{
    dt_log_live(NULL);
    if (!communicator) {
        dt_error_print(error, wants_debug());
        _exit((int)error->code);
    }
    n_words =
        (sig_atomic_t)dt_comm_last_words(communicator, error, wants_debug(), words, sizeof words);
    if (n_words > 0)
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
