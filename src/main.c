// The program: prepares the process (standard streams, signals, OpenMP), runs the subcommand and
// returns its exit code. If a rank fails alone, dt_die (base/error.h) ends the process instead, by
// the function that cmd/report.c registers.
#include "base/crash.h"
#include "base/file.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "comm/device_comm.h"
#include "comm/job_control.h"
#include "train/signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// libgomp's waiting threads spin, which starves working threads if cores are shared with anything
// else (a step can take a hundred times as long), and libgomp reads its settings before main. So
// unless the user chose, the program executes itself again with waiting threads set to sleep.
static void choose_waiting(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    char self[DT_PATH];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0)
        return;
    self[length] = '\0';
    execv(self, argv); // if this fails, threads spin
}

// Raises the limit of the main thread's stack. For other threads, including libraries', glibc has
// already read the limit.
static dt_status raise_stack_limit(void)
{
    enum { LEAST = 1 << 20, USUAL = 8 << 20 };
    struct rlimit limit;
    pthread_attr_t threads;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST)
        return DT_OK;
    const long long kib = (long long)limit.rlim_cur / 1024;
    limit.rlim_cur = limit.rlim_max < USUAL ? limit.rlim_max : USUAL;
    if (limit.rlim_cur < LEAST || setrlimit(RLIMIT_STACK, &limit) != 0)
        return DT_FAIL(DT_USER,
                       "run `ulimit -s 8192` first, or have the hard limit raised "
                       "(/etc/security/limits.conf)",
                       "the stack is limited to %lld KiB (ulimit -s): dtrain and its libraries "
                       "need %d KiB",
                       kib, LEAST / 1024);
    pthread_getattr_default_np(&threads);
    pthread_attr_setstacksize(&threads, limit.rlim_cur);
    pthread_setattr_default_np(&threads);
    pthread_attr_destroy(&threads);
    return DT_OK;
}

// If a process is started with closed standard streams, the next open file, a lock or a checkpoint,
// would get their descriptors, and messages would be written into it.
static void open_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

static dt_status run_together(const struct dt_call *call)
{
    struct dt_comm *comm = NULL;
    bool configured = call->command->configured && call->n_words > 0;
    const struct dt_comm_limits limits =
        dt_settings_limits(configured ? call->words[0] : NULL, call->words + 1, call->n_words - 1);
    DT_TRY(dt_comm_open_within(DT_COMM_KIND_AUTO, &limits, &comm));
    dt_crash_catch(DT_CRASH_LIMIT_S);
    dt_report_set_comm(comm);
    dt_signals_set_comm(comm);
    dt_log_quiet(comm->info.rank != 0);
    dt_status status = dt_comm_end_if_alone(comm, call->command->run(comm, call));
    dt_report(status);
    dt_signals_set_comm(NULL);
    dt_comm_close(comm);
    dt_report_set_comm(NULL);
    return status;
}

static dt_status run(const struct dt_call *call)
{
    const struct dt_train_options *train =
        call->command == dt_commands[0] ? call->options : &(struct dt_train_options){0};
    if (call->command == dt_commands[0] && !call->help && !train->version && !train->check)
        DT_TRY(dt_signals_receive()); // before MPI starts, so that signals never kill a run
    else
        dt_signals_release();
    if (call->help)
        dt_print_help(call->command, stdout);
    else if (train->version)
        printf("dtrain %s\n", DT_VERSION);
    else if (dt_call_communicates(call))
        return run_together(call);
    else if (dt_comm_launched_rank() <= 0) { // only one process of those that a launcher started
        dt_crash_catch(DT_CRASH_LIMIT_S);
        return call->command->run(NULL, call);
    }
    return DT_OK;
}

// Reports a failed write, whose reason is no longer known.
static dt_status flush_output(void)
{
    if (fflush(stdout) != 0)
        return DT_FAIL_ERRNO("write to", "standard output");
    if (ferror(stdout))
        return DT_FAIL(DT_MACHINE, "free some space where it goes, or write it elsewhere",
                       "cannot write all of the output");
    return DT_OK;
}

int main(int argc, char **argv)
{
    struct dt_call call = {0};
    dt_signals_hold();
    open_standard_streams();
    choose_waiting(argv);
    if (dt_device_comm_known)
        dt_device_comm_known->prepare();
    dt_die_register(dt_report_die);
    signal(SIGXFSZ, SIG_IGN); // a file that grows too large becomes an error of write(2)
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 1) {
        dt_print_commands(stderr);
        return DT_USER;
    }
    dt_status status = raise_stack_limit();
    if (status == DT_OK)
        status = dt_call_parse(argc - 1, argv + 1, &call);
    if (status == DT_OK)
        status = run(&call);
    if (status == DT_OK)
        status = flush_output();
    // Errors of the user (arguments, the launch) are the same on all ranks, so rank 0 reports them.
    if (status != DT_USER || dt_comm_launched_rank() == 0)
        dt_report(status);
    dt_call_free(&call);
    return (int)status;
}
