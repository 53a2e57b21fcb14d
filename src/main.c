// dtrain: arguments, subcommands, exit code. The only place that ends the process.
#include "base/log.h"
#include "cmd/cmd.h"
#include "comm/comm.h"
#include "comm/device_comm.h"
#include "comm/job_control.h"
#include "job/job.h"
#include "train/signals.h"
#include "train/train.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dt_comm *communicator; // of the whole process, for last words

// DTRAIN_DEBUG set: errors tell where in the source they passed.
static bool wants_debug(void)
{
    return getenv("DTRAIN_DEBUG") != NULL;
}

static volatile sig_atomic_t exit_code;

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

// The one way to end on an error of this rank alone: its last words, then the end of the job.
static void die(const struct dt_error *error)
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

// An error that every rank has: rank 0 says it, once.
static void report(dt_status status)
{
    static bool reported;
    if (status == DT_OK || reported || (communicator && communicator->info.rank != 0))
        return;
    reported = true;
    dt_log_live(NULL);
    dt_error_print(dt_error_current(), wants_debug());
    note_end(dt_error_current()->message, status);
}

// All ranks leave in order.
static int leave(dt_status status)
{
    report(status);
    dt_comm_close(communicator);
    communicator = NULL;
    return (int)status;
}

static void report_busy(void)
{
    if (communicator)
        dt_comm_busy(communicator);
}

static dt_status open_communicator(void)
{
    DT_TRY(dt_comm_open(DT_COMM_KIND_AUTO, &communicator));
    dt_file_on_progress(report_busy);
    dt_log_quiet(communicator->info.rank != 0);
    return DT_OK;
}

static dt_status run_command(const struct dt_command *command, int argc, char **argv)
{
    if (!command->communicates)
        return command->run(NULL, argc, argv);
    DT_TRY(open_communicator());
    return dt_comm_end_if_alone(communicator, command->run(communicator, argc, argv));
}

static dt_status run_training(bool check, int argc, char **argv)
{
    struct dt_job job;
    if (argc < 1)
        return DT_FAIL(DT_USER, "dtrain --help lists commands and keys",
                       "no configuration file given");
    DT_TRY(open_communicator());
    if (!check) // before anything that a signal must not end
        DT_TRY(dt_agree(communicator, dt_signals_install(communicator)));
    enum dt_purpose purpose = check ? DT_PURPOSE_CHECK : DT_PURPOSE_TRAIN;
    dt_status status = dt_job_open(communicator, purpose, argv[0], argv + 1, argc - 1, &job);
    if (status == DT_OK && !check)
        status = dt_train(&job);
    else if (status == DT_OK && communicator->info.rank == 0)
        status = dt_cmd_print_plan(&job);
    dt_comm_end_if_alone(communicator, status);
    report(status); // while the run's folder is still locked
    dt_job_close(&job);
    return status;
}

// printf pads by bytes: the width that gives `text` `columns` columns, as it is UTF-8.
static int padding(const char *text, int columns)
{
    for (; *text; text++)
        columns += (*text & 0xC0) == 0x80;
    return columns;
}

static void print_commands(FILE *out)
{
    fprintf(out,
            "dtrain trains Mamba sequence models on many GPUs or CPUs.\n\n"
            "  dtrain CONFIG [section.key=value …]    train (mpirun -np 4 dtrain config.ini: on "
            "four ranks)\n"
            "  dtrain --check CONFIG [key=value …]    resolved configuration, data, memory plan; "
            "trains nothing\n");
    for (const struct dt_command *command = dt_commands; command->name; command++)
        fprintf(out, "  dtrain %-*s%s\n", padding(command->usage, 32), command->usage,
                command->help);
    fprintf(out, "  dtrain --help, dtrain --version\n");
}

static void print_help(void)
{
    print_commands(stdout);
    printf(
        "\nExit codes: 0 success, or a clean stop on a signal; 2 arguments, configuration or data "
        "are wrong;\n"
        "3 the machine failed (I/O, memory, device, communication).\n\n"
        "Configuration: section.key=value on the command line, over DTRAIN_SECTION__KEY in the\n"
        "environment, over the file, over the default.\n\n");
    dt_config_help(&dt_settings_table, stdout);
}

// libgomp's threads spin while they wait, which takes the core from a thread that works wherever
// cores are shared with anything else (a step can take a hundred times as long), and it reads its
// settings before main. So unless the user chose, the program starts again with waiting set to
// sleep.
static void choose_waiting(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    char self[DT_PATH];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0)
        return;
    self[length] = '\0';
    execv(self, argv); // where this fails, threads spin
}

// A process may be started with standard streams closed; the next file that is opened, a lock or a
// checkpoint, would then take their place, and messages would go into it.
static void open_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    open_standard_streams();
    choose_waiting(argv);
    if (dt_device_comm_known)
        dt_device_comm_known->prepare();
    dt_die_register(die);
    signal(SIGXFSZ, SIG_IGN); // a file that grows too large: an error of write that has words
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *word = argc > 1 ? argv[1] : "";
    if (argc == 1) {
        print_commands(stderr);
        return DT_USER;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        print_help();
        return DT_OK;
    }
    if (strcmp(word, "--version") == 0) {
        printf("dtrain %s\n", DT_VERSION);
        return DT_OK;
    }
    for (const struct dt_command *command = dt_commands; command->name; command++)
        if (strcmp(word, command->name) == 0)
            return leave(run_command(command, argc - 1, argv + 1));
    if (strcmp(word, "--check") == 0)
        return leave(run_training(true, argc - 2, argv + 2));
    if (word[0] == '-')
        return leave(
            DT_FAIL(DT_USER, "dtrain --help lists commands and keys", "unknown option %s", word));
    return leave(run_training(false, argc - 1, argv + 1));
}
