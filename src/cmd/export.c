// `dtrain export`: writes a checkpoint's model as a separate Hugging Face directory: in fp32 or
// bf16, in one file or several, with the names of transformers or of state-spaces/mamba; or with
// int8 linear layers for inference by libdtrain_step.
#include "cmd/cmd.h"

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "job/device.h"
#include "model/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct options {
    bool int8, bf16, official, ema;
    int64_t shard_mb;
};

static const struct dt_option options[] = {
    {DT_OPTION(FLAG, int8, "false", "linear layers in int8, with a scale per output channel")},
    {DT_OPTION(FLAG, bf16, "false", "all weights in bf16: half the size")},
    {.key = DT_CONFIG_WHOLE(struct options, shard_mb, "shard-mb", "0", 0, 1e6,
                            "files with at most so many MB of weights, and an index; 0: one file")},
    {DT_OPTION(FLAG, official, "false",
               "names of state-spaces/mamba, in config.json and model.safetensors")},
    {DT_OPTION(FLAG, ema, "false", "use the moving average of the weights (optim.ema)")},
    {.key = {0}},
};

static dt_status config_text(const struct dt_model_config *config, const struct options *chosen,
                             char **text)
{
    if (chosen->official)
        return dt_hf_official_text(config, text);
    DT_TRY(dt_hf_config_text(config, text));
    static const char wide[] = "\"torch_dtype\":\t\"float32\"",
                      half[] = "\"torch_dtype\":\t\"bfloat16\"";
    char *at = chosen->bf16 ? strstr(*text, wide) : NULL, *changed;
    if (!at)
        return DT_OK;
    size_t n = strlen(*text) + sizeof half;
    DT_TRY(DT_NEW(&changed, n, "the text of config.json"));
    snprintf(changed, n, "%.*s%s%s", (int)(at - *text), *text, half, at + strlen(wide));
    free(*text);
    *text = changed;
    return DT_OK;
}

// Copies the tokenizer of the model, if any.
static dt_status copy_tokenizer(const char *from, const char *to)
{
    struct dt_tokenizer tokenizer;
    dt_status status = DT_OK;
    char path[DT_PATH];
    if (!dt_tokenizer_exists(from))
        return DT_OK;
    DT_TRY(dt_tokenizer_read(from, &tokenizer));
    for (int i = 0; i < tokenizer.n && status == DT_OK; i++) {
        const struct dt_tokenizer_file *file = &tokenizer.files[i];
        status = dt_path(path, "%s/%s", to, file->name);
        if (status == DT_OK)
            status = dt_write_synced(path, file->data, file->size);
    }
    dt_tokenizer_free(&tokenizer);
    return status;
}

static dt_status write_files(const char *dir, struct dt_model *model, const struct options *chosen)
{
    char path[DT_PATH], *text;
    const struct dt_hf_format format = {.type = chosen->bf16 ? DT_BF16 : DT_F32,
                                        .int8 = dt_model_int8(model),
                                        .official = chosen->official,
                                        .file_bytes = chosen->shard_mb * 1000000};
    DT_TRY(config_text(dt_model_config(model), chosen, &text));
    dt_status status = dt_path(path, "%s/config.json", dir);
    if (status == DT_OK)
        status = dt_write_synced(path, text, (int64_t)strlen(text));
    free(text);
    DT_TRY(status);
    DT_TRY(dt_hf_write(dir, dt_model_params(model), dt_model_weights(model), &format));
    DT_TRY(dt_fsync_dir(dir));
    return dt_fsync_parent(dir);
}

// Exports through a model, whose linear layers determine which rows become int8.
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
    status = copy_tokenizer(from, to);
    if (status == DT_OK)
        status = write_files(to, model, chosen);
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
    const struct options *chosen = call->options;
    (void)comm;
    if (chosen->int8 && (chosen->bf16 || chosen->official))
        return DT_FAIL(DT_USER, "choose one of them",
                       "--int8 is a format of dtrain's own, without --bf16 and --official");
    DT_TRY(dt_cmd_find_model(call->words[0], from));
    DT_TRY(dt_device_open_alone(DT_DEVICE_CPU, 1, &cpu));
    dt_status status = export_model(&cpu, from, call->words[1], chosen);
    dt_backend_close(&cpu);
    return status;
}

const struct dt_command dt_cmd_export = {
    .name = "export",
    .usage = "RUN DIR [options]",
    .help = "write a trained model as a Hugging Face directory, in fp32, bf16 or int8",
    .about = "RUN is a run's folder (its newest checkpoint), a checkpoint, or a Hugging Face "
             "directory. DIR is created. For int8, train with model.quantize = int8: export then "
             "loses nothing more.",
    .min_words = 2,
    .max_words = 2,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};
