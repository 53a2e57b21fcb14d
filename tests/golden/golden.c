// Reading a golden file. Everything in it is fp32 or a metadata string.
#include "golden.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void golden_must(dt_status status)
{
    if (status == DT_OK)
        return;
    char text[DT_ERROR_MESSAGE + DT_ERROR_HINT];
    dt_error_format(dt_error_current(), 1, text, sizeof text);
    fputs(text, stderr);
    exit(1);
}

static const char *metadata(const struct golden *golden, const char *key)
{
    const char *value = dt_safetensors_metadata(golden->file, key);
    if (!value) {
        fprintf(stderr, "%s: no metadata %s: run the family's Python file\n", golden->file->path,
                key);
        exit(1);
    }
    return value;
}

static double number(const struct golden *golden, const char *key)
{
    return strtod(metadata(golden, key), NULL);
}

static int64_t whole(const struct golden *golden, const char *key)
{
    return strtoll(metadata(golden, key), NULL, 10);
}

float *golden_tensor(const struct golden *golden, int64_t *count, const char *name, ...)
{
    char full[DT_PARAM_NAME + 32];
    va_list args;
    va_start(args, name);
    vsnprintf(full, sizeof full, name, args);
    va_end(args);
    const struct dt_safetensor *tensor = dt_safetensors_find(golden->file, full);
    if (!tensor)
        return NULL;
    float *values = malloc((size_t)tensor->count * sizeof *values);
    golden_must(dt_safetensors_read_f32(golden->file, tensor, 0, tensor->count, values));
    if (count)
        *count = tensor->count;
    return values;
}

void golden_open(const char *path, struct golden *golden)
{
    memset(golden, 0, sizeof *golden);
    golden_must(dt_safetensors_open(path, &golden->file));
    // The file leaves out keys of the model that have their defaults.
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        char name[DT_CONFIG_NAME], problem[DT_CONFIG_PROBLEM];
        snprintf(name, sizeof name, "model.%s", key->name);
        const char *value = dt_safetensors_metadata(golden->file, name);
        dt_config_set_default(key, &golden->config);
        if (value && !dt_config_convert(key, value, &golden->config, problem)) {
            fprintf(stderr, "%s: %s: %s\n", path, name, problem);
            exit(1);
        }
    }
    golden->config.storage = DT_F32;
    golden_must(dt_model_config_check(&golden->config));
    golden->batch = whole(golden, "B");
    golden->length = whole(golden, "T");
    golden->steps = (int)whole(golden, "steps");
    golden->beta1 = number(golden, "beta1");
    golden->beta2 = number(golden, "beta2");
    golden->eps = number(golden, "eps");
    golden->weight_decay = number(golden, "weight_decay");
    golden->grad_clip = number(golden, "grad_clip");
    // Files that use AdamW alone leave these out.
    const char *momentum = dt_safetensors_metadata(golden->file, "momentum");
    golden->muon = momentum != NULL;
    golden->momentum = momentum ? strtod(momentum, NULL) : 0;
    golden->groups = dt_safetensors_metadata(golden->file, "lr_groups");
    const char *batches = dt_safetensors_metadata(golden->file, "batches");
    golden->batches = batches ? atoi(batches) : golden->steps;
    golden->segments = dt_safetensors_metadata(golden->file, "segments");
    golden->state = strcmp(metadata(golden, "state"), "true") == 0;
    const char *text = metadata(golden, "lr");
    for (int k = 0; k < golden->steps; k++) {
        char *end;
        golden->lr[k] = strtod(text, &end);
        text = end;
    }
}

void golden_close(struct golden *golden)
{
    dt_safetensors_close(golden->file);
}
