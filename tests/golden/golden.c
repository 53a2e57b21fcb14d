// Reading a golden file. Everything in it is fp32 or a metadata string; ids, labels and resets are
// whole numbers kept as fp32.
#include "golden.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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
        fprintf(stderr, "%s: no metadata %s: run make_golden.py\n", golden->file->path, key);
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

static int32_t *tokens(const struct golden *golden, const char *name)
{
    int64_t count;
    float *values = golden_tensor(golden, &count, "%s", name);
    int32_t *out = malloc((size_t)count * sizeof *out);
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)values[i];
    free(values);
    return out;
}

static uint8_t *flags(const struct golden *golden, const char *name)
{
    int64_t count;
    float *values = golden_tensor(golden, &count, "%s", name);
    if (!values)
        return NULL;
    uint8_t *out = malloc((size_t)count);
    for (int64_t i = 0; i < count; i++)
        out[i] = values[i] != 0.0f;
    free(values);
    return out;
}

static void read_rates(struct golden *golden)
{
    const char *text = metadata(golden, "lr");
    for (int k = 0; k < GOLDEN_STEPS; k++) {
        char *end;
        golden->lr[k] = strtod(text, &end);
        text = end;
    }
}

void golden_open(const char *path, struct golden *golden)
{
    memset(golden, 0, sizeof *golden);
    golden_must(dt_safetensors_open(path, &golden->file));
    golden->config = (struct dt_model_config){
        .d_model = whole(golden, "d_model"),
        .n_layer = whole(golden, "n_layer"),
        .vocab_size = whole(golden, "vocab_size"),
        .d_state = whole(golden, "d_state"),
        .d_conv = whole(golden, "d_conv"),
        .expand = whole(golden, "expand"),
        .dt_rank = whole(golden, "dt_rank"),
        .norm_eps = number(golden, "norm_eps"),
        .tie_embeddings = whole(golden, "tie"),
        .pad_vocab_multiple = 8,
        .recompute = DT_RECOMPUTE_NONE,
        .storage = DT_F32,
    };
    golden->batch = whole(golden, "B");
    golden->length = whole(golden, "T");
    golden->beta1 = number(golden, "beta1");
    golden->beta2 = number(golden, "beta2");
    golden->eps = number(golden, "eps");
    golden->weight_decay = number(golden, "weight_decay");
    golden->grad_clip = number(golden, "grad_clip");
    golden->ids = tokens(golden, "golden.ids");
    golden->labels = tokens(golden, "golden.labels");
    golden->reset = flags(golden, "golden.reset");
    golden->state = whole(golden, "state");
    read_rates(golden);
}

void golden_close(struct golden *golden)
{
    free(golden->ids);
    free(golden->labels);
    free(golden->reset);
    dt_safetensors_close(golden->file);
}
