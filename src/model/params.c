// Builds the parameter table and its initial values. An element's value depends only on seed, the
// row's name and its index in the row: each row has its own Philox stream, from which an element
// draws a fixed number of words.
#include "model/params.h"

#include "base/list.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/round.h"
#include "base/text.h"

#include <fnmatch.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    ROW_ALIGN = 64,           // elements: 256 bytes of fp32, 128 of bf16
    INIT_STREAM = 0x494e4954, // different from the streams of data order
};

// Counts elements in files (shape) and in memory (memory_rows instead of shape[0]); false if the
// arrays' end overflows.
static dt_status count_elements(const struct dt_params *params, struct dt_param *row,
                                int64_t memory_rows)
{
    int64_t inner = 1, end;
    bool fits = row->shape[0] > 0 && memory_rows >= row->shape[0];
    for (int i = 1; fits && i < row->n_dims; i++)
        fits = row->shape[i] > 0 && !__builtin_mul_overflow(inner, row->shape[i], &inner);
    fits = fits && !__builtin_mul_overflow(inner, memory_rows, &row->count) &&
           !__builtin_add_overflow(params->elements, row->count, &end) &&
           end <= INT64_MAX / 64 - ROW_ALIGN; // so that bytes of all arrays of training fit, too
    if (!fits)
        return DT_FAIL(DT_USER, "choose a smaller model",
                       "%s is larger than any memory: first dimension %lld (%lld in memory)",
                       row->name, (long long)row->shape[0], (long long)memory_rows);
    row->file_count = inner * row->shape[0];
    return DT_OK;
}

int dt_params_add(struct dt_params *params, dt_init *init, double init_scale, int64_t memory_rows,
                  int n_dims, const int64_t *shape, const char *name, ...)
{
    struct dt_param row = {.n_dims = n_dims,
                           .offset = params->elements,
                           .init = init,
                           .init_scale = (float)init_scale,
                           .decay = n_dims >= 2,
                           .width = 1};
    for (int i = 0; i < n_dims; i++)
        row.shape[i] = shape[i];
    va_list list;
    va_start(list, name);
    vsnprintf(row.name, sizeof row.name, name, list);
    va_end(list);
    if (count_elements(params, &row, memory_rows) != DT_OK ||
        dt_list_grow(&params->rows, params->n, sizeof *params->rows) != DT_OK) {
        params->failed = true;
        return -1;
    }
    for (int i = 0; i < params->n_wanted; i++)
        if (strcmp(params->wanted[i].name, row.name) == 0) {
            *params->wanted[i].row = params->n;
            params->wanted[i--] = params->wanted[--params->n_wanted];
            row.shared = true;
        }
    params->rows[params->n] = row;
    params->elements = dt_round_up(row.offset + row.count, ROW_ALIGN);
    params->count += row.file_count;
    return params->n++;
}

void dt_params_slice(struct dt_params *params, int row, const char *end, int64_t rows)
{
    if (row < 0)
        return;
    struct dt_param *param = &params->rows[row];
    struct dt_param_slice *slice = &param->slices[param->n_slices];
    int64_t first = param->n_slices++ > 0 ? slice[-1].first + slice[-1].rows : 0;
    *slice = (struct dt_param_slice){end, first, rows};
}

void dt_param_slice_name(const struct dt_param *row, int slice, char name[DT_PARAM_NAME])
{
    int part = (int)(strstr(row->name, "mixer.") - row->name);
    snprintf(name, DT_PARAM_NAME, "%.*smixer.%s", part, row->name, row->slices[slice].end);
}

void dt_params_keep(struct dt_params *params, int row)
{
    if (row >= 0) // otherwise params->failed
        params->rows[row].decay = false;
}

void dt_params_freeze(struct dt_params *params, int row)
{
    dt_params_keep(params, row);
    if (row >= 0)
        params->rows[row].frozen = true;
}

void dt_params_allow_missing(struct dt_params *params, int row)
{
    if (row >= 0)
        params->rows[row].optional = true;
}

void dt_params_share(struct dt_params *params, const char *name, int *row)
{
    int n = params->n_wanted;
    bool twice = false; // both would write the gradient
    for (int i = 0; i < n; i++)
        twice = twice || strcmp(params->wanted[i].name, name) == 0;
    if (twice || n == DT_PARAMS_WANTED) {
        DT_FAIL(DT_USER, NULL, "%s is shared by two parts, or is one tensor too many", name);
        params->failed = true;
        return;
    }
    params->wanted[n].name = name;
    params->wanted[n].row = row;
    params->n_wanted++;
}

dt_status dt_params_complete(const struct dt_params *params)
{
    if (params->failed)
        return dt_error_push(dt_error_current()->code, __FILE__, __LINE__, __func__,
                             "listing the model's tensors");
    if (params->n_wanted > 0)
        return DT_FAIL(DT_USER, "set model.tie_embeddings = false",
                       "the model shares the tensor %s, but no part of it has one",
                       params->wanted[0].name);
    return DT_OK;
}

void dt_params_free(struct dt_params *params)
{
    free(params->rows);
    free(params->ring.units);
    *params = (struct dt_params){0};
}

const struct dt_param *dt_params_find(const struct dt_params *params, const char *name)
{
    for (int i = 0; i < params->n; i++)
        if (strcmp(params->rows[i].name, name) == 0)
            return &params->rows[i];
    return NULL;
}

float dt_init_normal(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)i;
    return row->init_scale * dt_philox_normal(rng);
}

float dt_init_uniform(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)i;
    return row->init_scale * (2.0f * dt_philox_uniform(rng) - 1.0f);
}

float dt_init_zero(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)row, (void)i, (void)rng;
    return 0.0f;
}

float dt_init_one(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)row, (void)i, (void)rng;
    return 1.0f;
}

float dt_init_constant(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)i, (void)rng;
    return row->init_scale;
}

void dt_params_init(const struct dt_params *params, uint64_t seed, float *weights)
{
    memset(weights, 0, (size_t)params->elements * sizeof *weights);
    for (const struct dt_param *row = params->rows; row < params->rows + params->n; row++) {
        uint64_t hash = XXH64(row->name, strlen(row->name), 0);
        struct dt_philox rng = dt_philox_init(seed, INIT_STREAM, hash);
        for (int64_t i = 0; i < row->file_count; i++)
            weights[row->offset + i] = row->init(row, i, &rng);
    }
}

// Lists the names of rows for a hint, layers merged: "backbone.layers.*.norm.weight".
static void list_names(const struct dt_params *params, char *text, size_t size)
{
    text[0] = 0;
    for (int i = params->n - 1; i >= 0; i--) { // in forward order
        const char *name = params->rows[i].name, *layer = strstr(name, ".layers.");
        char any[DT_PARAM_NAME + 1];
        size_t head = layer ? (size_t)(layer - name) + strlen(".layers.") : strlen(name);
        snprintf(any, sizeof any, "%.*s%s%s", (int)head, name, layer ? "*" : "",
                 layer ? name + head + strspn(name + head, "0123456789") : "");
        if (!strstr(text, any))
            dt_append(text, size, "%s%s", text[0] ? ", " : "", any);
    }
}

// Parses "PATTERN:VALUE" at *text, advances *text, and applies it to matching rows.
static dt_status apply_group(const struct dt_params *params, const char **text, double lr,
                             struct dt_param_rate *rates)
{
    size_t n = strcspn(*text, " ");
    char group[DT_PARAM_NAME * 2], names[1024], *end;
    snprintf(group, sizeof group, "%.*s", (int)n, *text);
    *text += n + strspn(*text + n, " ");
    char *colon = n < sizeof group ? strrchr(group, ':') : NULL;
    double value = colon ? strtod(colon + 1, &end) : -1;
    bool factor = colon && end > colon + 1 && strcmp(end, "x") == 0;
    if (!colon || colon == group || !(value >= 0 && value <= 1000) || (!factor && *end != 0) ||
        end == colon + 1)
        return DT_FAIL(DT_USER, "give a learning rate, or a factor such as 0.1x",
                       "optim.lr[%.*s]: '%s' is no number from 0 to 1000", (int)strcspn(group, ":"),
                       group, colon ? colon + 1 : "");
    *colon = 0;
    int matches = 0;
    for (int i = 0; i < params->n; i++)
        if (fnmatch(group, params->rows[i].name, 0) == 0) {
            rates[i].group = (float)(factor ? value : value / lr);
            matches++;
        }
    if (matches > 0)
        return DT_OK;
    list_names(params, names, sizeof names);
    return DT_FAIL(DT_USER, names, "optim.lr[%s] matches no name of this model", group);
}

dt_status dt_params_rates(const struct dt_params *params, const char *groups, double lr, bool muon,
                          struct dt_param_rate **rates)
{
    DT_TRY(DT_NEW(rates, params->n, "the learning rates of %d rows", params->n));
    for (int i = 0; i < params->n; i++)
        (*rates)[i].group = 1;
    for (const char *at = groups + strspn(groups, " "); *at;) {
        dt_status status = apply_group(params, &at, lr, *rates);
        if (status != DT_OK) {
            free(*rates);
            *rates = NULL;
            return status;
        }
    }
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        float width = muon && row->matrix ? sqrtf(row->width) : row->width;
        (*rates)[i].lr = (*rates)[i].group / width;
    }
    return DT_OK;
}

dt_status dt_params_spans(const struct dt_params *params, float weight_decay,
                          const struct dt_param_rate *rates, struct dt_adamw_span **spans,
                          int64_t *n)
{
    *n = 0;
    DT_TRY(DT_NEW(spans, params->n + 1, "the optimizer's %d spans", params->n));
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        float decay = row->decay ? weight_decay * rates[i].group : 0.0f;
        const struct dt_adamw_span *last = &(*spans)[*n - 1];
        if (*n == 0 || last->decay != decay || last->lr != rates[i].lr)
            (*spans)[(*n)++] = (struct dt_adamw_span){.decay = decay, .lr = rates[i].lr};
        (*spans)[*n - 1].end = dt_round_up(row->offset + row->count, ROW_ALIGN);
    }
    return DT_OK;
}
