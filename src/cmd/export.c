// `dtrain export`: writes a checkpoint's model as a Hugging Face directory of its own, for use
// elsewhere: in fp32, or with linear layers in int8 for inference by libdtrain_step.
#include "cmd/cmd.h"

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "job/device.h"
#include "model/hf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct options {
    bool int8, ema;
};

static const struct dt_option options[] = {
    {DT_OPTION(FLAG, int8, "false", "linear layers in int8, with a scale per output channel")},
    {DT_OPTION(FLAG, ema, "false", "use the moving average of the weights (optim.ema)")},
    {.key = {0}},
};

static dt_status write_files(const char *dir, struct dt_model *model)
{
    const struct dt_params *params = dt_model_params(model);
    char path[DT_PATH], *text;
    DT_TRY(dt_hf_write(dir, params, dt_model_weights(model),
                       &(struct dt_hf_format){.int8 = dt_model_int8(model)}));
    DT_TRY(dt_path(path, "%s/config.json", dir));
    DT_TRY(dt_hf_config_text(dt_model_config(model), &text));
    dt_status status = dt_write_synced(path, text, (int64_t)strlen(text));
    free(text);
    DT_TRY(status);
    DT_TRY(dt_fsync_dir(dir));
    return dt_fsync_parent(dir);
}

// Through a model, whose linear layers say which rows become int8.
static dt_status export_model(const struct dt_backend *cpu, const char *from, const char *to,
                              const struct options *chosen)
{
    struct dt_model_config config = {.pad_vocab_multiple = 8};
    const struct dt_model_shape shape = {.sequences = 1, .length = 1, .int8 = chosen->int8};
    struct dt_model *model = NULL;
    dt_status status;
    DT_TRY(dt_hf_read_config(from, &config));
    DT_TRY(dt_hf_check_weights(from, chosen->ema, &config, NULL));
    config.storage = DT_F32;
    if (chosen->int8)
        config.quantize = DT_QUANTIZE_INT8;
    DT_TRY(dt_model_create(cpu, &config, &shape, &model));
    DT_TRY_GOTO(status, out,
                dt_hf_read_weights(from, chosen->ema, dt_model_params(model), config.tie_embeddings,
                                   dt_model_weights(model)));
    DT_TRY_GOTO(status, out, dt_model_refresh(model, NULL));
    if (mkdir(to, 0777) != 0) {
        status = errno == EEXIST ? DT_FAIL(DT_USER, "give a new folder", "%s exists", to)
                                 : DT_FAIL_ERRNO("create", to);
        goto out;
    }
    status = write_files(to, model);
    if (status != DT_OK)
        dt_discard_tree(to);
out:
    dt_model_destroy(model);
    return status;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    struct dt_backend cpu;
    char from[DT_PATH];
    (void)comm;
    DT_TRY(dt_cmd_find_model(call->words[0], from));
    DT_TRY(dt_device_open_alone(DT_DEVICE_CPU, 1, &cpu));
    dt_status status = export_model(&cpu, from, call->words[1], call->options);
    dt_backend_close(&cpu);
    return status;
}

const struct dt_command dt_cmd_export = {
    .name = "export",
    .usage = "RUN DIR [options]",
    .help = "write a trained model as a Hugging Face directory, in fp32 or int8",
    .about = "RUN is a run's folder (its newest checkpoint), a checkpoint, or a Hugging Face "
             "directory. DIR is created. For int8, train with model.quantize = int8: export then "
             "loses nothing more.",
    .min_words = 2,
    .max_words = 2,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};
