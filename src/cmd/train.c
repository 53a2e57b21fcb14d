// `dtrain CONFIG` and `dtrain --check CONFIG`.
#include "train/train.h"
#include "cmd/cmd.h"
#include "comm/job_control.h"

#include <limits.h>

static const struct dt_option options[] = {
    {.key =
         DT_CONFIG_FLAG(struct dt_train_options, check, "check", "false",
                        "print the resolved configuration, data and memory plan; train nothing")},
    {.key =
         DT_CONFIG_FLAG(struct dt_train_options, version, "version", "false", "print the version")},
    {.key = {0}},
};

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    bool check = ((const struct dt_train_options *)call->options)->check;
    enum dt_purpose purpose = check ? DT_PURPOSE_CHECK : DT_PURPOSE_TRAIN;
    struct dt_job job;
    if (call->n_words == 0)
        return DT_FAIL(DT_USER, "dtrain --help lists commands and keys",
                       "no configuration file given");
    dt_status status =
        dt_job_open(comm, purpose, call->words[0], call->words + 1, call->n_words - 1, &job);
    if (status == DT_OK && !check)
        status = dt_train(&job);
    else if (status == DT_OK && comm->info.rank == 0)
        status = dt_cmd_print_plan(&job);
    dt_comm_end_if_alone(comm, status);
    dt_report(status); // while the run's folder is still locked
    dt_job_close(&job);
    return status;
}

const struct dt_command dt_cmd_train = {
    .name = "",
    .usage = "CONFIG [section.key=value …]",
    .help = "train (on four ranks: mpirun -np 4 dtrain CONFIG)",
    .max_words = INT_MAX,
    .configured = true,
    .communicates = true,
    .options = options,
    .options_size = sizeof(struct dt_train_options),
    .run = run,
};
