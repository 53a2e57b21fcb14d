// The handler of fatal signals runs on its own stack and calls only async-signal-safe functions.
// The crashed thread may hold a lock, so the thread that the handler wakes (`report`) does
// everything that needs memory or locks.
#include "base/crash.h"

#include "base/error.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool wanted = false;
#else
static const bool wanted = true;
#endif

enum { SIGNALS = 5, STACK_BYTES = 1 << 16, PATIENCE_S = 15 };
static const struct {
    int number;
    const char *what;
} fatal[SIGNALS] = {{SIGSEGV, " crashed (SIGSEGV)"},
                    {SIGBUS, " crashed (SIGBUS)"},
                    {SIGFPE, " crashed (SIGFPE)"},
                    {SIGABRT, " crashed (SIGABRT)"},
                    {SIGVTALRM, " computes without end"}}; // sent by `report`

static struct sigaction before[SIGNALS]; // the previous handlers
static _Thread_local const struct dt_crash_note *volatile current;
static _Thread_local volatile bool reporting;
static char stack[STACK_BYTES]; // the handler's, for the thread with a note
static stack_t other_stack;
static sigset_t other_mask; // if all signals were blocked, the handler would not run
static sem_t crashed;
static atomic_int crash = -1; // index into `fatal`
static const struct dt_crash_note *noted;

static double limit;
// The thread inside the library:
static atomic_bool inside;
static atomic_llong calls;
static _Atomic(pthread_t) caller;
static _Atomic(clockid_t) its_time; // its CPU-time clock

static _Noreturn void end_here(void)
{
    const char *words[] = {"dtrain: error: ",
                           noted->library,
                           fatal[atomic_load(&crash)].what,
                           " reading ",
                           noted->path,
                           "\n  hint: ",
                           noted->hint,
                           "\n"};
    char text[8192];
    size_t used = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (const char *part = words[i]; *part && used < sizeof text; part++)
            text[used++] = *part;
    if (write(STDERR_FILENO, text, used) < 0) // there is nowhere to report this
        _exit(DT_MACHINE);
    _exit(DT_MACHINE);
}

// Whether the thread inside the library has computed for too long since its last call began. Called
// once per second.
static bool is_stuck(void)
{
    static long long seen = -1;
    static double begun;
    struct timespec used;
    long long now = atomic_load(&calls);
    if (!atomic_load(&inside) || clock_gettime(atomic_load(&its_time), &used) != 0)
        return false;
    double seconds = (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
    if (now != seen)
        begun = seconds;
    seen = now;
    return seconds - begun > limit;
}

static void *report(void *nothing)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    for (until.tv_sec++; sem_timedwait(&crashed, &until) != 0; until.tv_sec += errno == ETIMEDOUT)
        if (errno == ETIMEDOUT && is_stuck())
            pthread_kill(atomic_load(&caller), SIGVTALRM);
    reporting = true;
    DT_FAIL(DT_MACHINE, noted->hint, "%s%s reading %s", noted->library,
            fatal[atomic_load(&crash)].what, noted->path);
    dt_die();
    return nothing;
}

static void receive(int number, siginfo_t *info, void *context)
{
    int place = 0, none = -1;
    const struct dt_crash_note *note = current;
    (void)context;
    while (fatal[place].number != number)
        place++;
    if (reporting) // the report itself crashed
        end_here();
    if (!note || info->si_code == SI_USER) { // a fault occurs again after the handler returns
        sigaction(number, &before[place], NULL);
        if (info->si_code <= 0)
            raise(number);
        return;
    }
    noted = note;
    atomic_compare_exchange_strong(&crash, &none, place);
    sem_post(&crashed);
    for (int i = 0; i < PATIENCE_S * 10; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    end_here();
}

static sigset_t all_fatal(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    for (int i = 0; i < SIGNALS; i++)
        sigaddset(&signals, fatal[i].number);
    return signals;
}

void dt_crash_catch(double limit_s)
{
    pthread_t thread;
    sigset_t all, others, signals = all_fatal();
    struct sigaction action = {.sa_sigaction = receive, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (!wanted || sem_init(&crashed, 0, 0) != 0)
        return;
    limit = limit_s;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &others);
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    bool failed = pthread_create(&thread, NULL, report, NULL) != 0;
    pthread_sigmask(SIG_SETMASK, &others, NULL);
    if (failed)
        return;
    pthread_detach(thread);
    for (int i = 0; i < SIGNALS; i++)
        sigaction(fatal[i].number, &action, &before[i]);
}

void dt_crash_enter(const struct dt_crash_note *note)
{
    sigset_t signals = all_fatal();
    clockid_t clock;
    if (!wanted || pthread_getcpuclockid(pthread_self(), &clock) != 0)
        return;
    current = note;
    atomic_store(&its_time, clock);
    atomic_store(&caller, pthread_self());
    dt_crash_advance();
    atomic_store(&inside, true);
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, &other_stack);
    pthread_sigmask(SIG_UNBLOCK, &signals, &other_mask);
}

void dt_crash_leave(void)
{
    if (!wanted)
        return;
    atomic_store(&inside, false);
    pthread_sigmask(SIG_SETMASK, &other_mask, NULL);
    sigaltstack(&other_stack, NULL);
    current = NULL;
}

void dt_crash_advance(void)
{
    atomic_fetch_add(&calls, 1);
}
