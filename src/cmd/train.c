// `dtrain CONFIG` trains; `dtrain --check CONFIG` prints the plan; `--run-folder` names the run's
// folder for scripts.
#include "train/train.h"
#include "cmd/cmd.h"
#include "comm/job_control.h"
#include "train/memory.h"

#include <limits.h>

static const struct dt_option options[] = {
    {.key = DT_CONFIG_FLAG(struct dt_train_options, check, "check", "false",
                           "print what was set, data, memory plan and duration; train nothing")},
    {.key = DT_CONFIG_FLAG(struct dt_train_options, all, "all", "false",
                           "with --check: every key, with its default")},
    {.key = DT_CONFIG_FLAG(struct dt_train_options, propose, "propose", "false",
                           "with --check: print the largest micro-batch and window for the device, "
                           "and sizes that waste tensor cores, instead of the plan")},
    {.key = DT_CONFIG_TEXT(struct dt_train_options, device, "device", "",
                           "with --propose: another device: rtx3070-8, rtx3060-12, rtx4090-24, "
                           "rtx5090-32, a100-40, h100-80 or h200-141"),
     .argument = "NAME"},
    {.key = DT_CONFIG_FLAG(struct dt_train_options, run_folder, "run-folder", "false",
                           "print the folder of the run, for scripts; train nothing"),
     .alone = true},
    {.key =
         DT_CONFIG_FLAG(struct dt_train_options, version, "version", "false", "print the version")},
    {.key = {0}},
};

// Runs in one process, without a communicator.
static dt_status print_run_folder(const struct dt_call *call)
{
    struct dt_settings settings;
    struct dt_config *config;
    char path[DT_PATH];
    DT_TRY(dt_config_load(&dt_settings_table, dt_settings_check, call->words[0],
                          (const char *const *)call->words + 1, call->n_words - 1, &settings,
                          &config));
    dt_status status = dt_run_folder_path(&settings, path);
    if (status == DT_OK)
        puts(path);
    dt_config_free(config);
    return status;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    const struct dt_train_options *given = call->options;
    bool check = given->check;
    enum dt_purpose purpose = check ? DT_PURPOSE_CHECK : DT_PURPOSE_TRAIN;
    struct dt_job job;
    if (call->n_words == 0)
        return DT_FAIL(DT_USER, "dtrain --help lists commands and keys",
                       "no configuration file given");
    if (given->run_folder)
        return print_run_folder(call);
    if ((given->propose && !check) || (given->device && !given->propose))
        return DT_FAIL(DT_USER, "dtrain --check --propose [--device NAME] CONFIG",
                       given->propose ? "--propose needs --check" : "--device needs --propose");
    dt_status status = dt_job_open(comm, purpose, call->words, call->n_words, &job);
    if (status == DT_OK)
        status = dt_job_settle_segment(&job);
    if (status == DT_OK && !check)
        status = dt_train(&job);
    else if (status == DT_OK && comm->info.rank == 0)
        status = given->propose ? dt_cmd_print_proposal(&job, given->device ? given->device : "")
                                : dt_cmd_print_plan(&job, given->all);
    dt_comm_end_if_alone(comm, status);
    dt_report(status); // while the run's folder is locked
    dt_job_close(&job);
    return status;
}

const struct dt_command dt_cmd_train = {
    .name = "",
    .usage = "CONFIG [section.key=value …]",
    .help = "train; on four ranks: mpirun -np 4 dtrain CONFIG",
    .max_words = INT_MAX,
    .configured = true,
    .communicates = true,
    .options = options,
    .options_size = sizeof(struct dt_train_options),
    .run = run,
};
