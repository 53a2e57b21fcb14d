// Weights in Hugging Face directories. A directory holds model.safetensors, or several files that
// model.safetensors.index.json lists; either way each tensor of the table must be there once, in
// its shape, and nothing else.
#include "model/hf.h"

#include "base/file.h"
#include "base/finite.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/problems.h"
#include "base/safetensors.h"
#include "base/text.h"

#include <string.h>

enum { INDEX_LIMIT = 16 << 20, SHAPE_TEXT = 96, SCALE_NAME = DT_PARAM_NAME + 8 }; // bytes
enum { FILES_MAX = 256 };                                                         // of a directory

static const char embeddings[] = "backbone.embeddings.weight";
static const char embeddings_official[] = "backbone.embedding.weight"; // state-spaces/mamba
static const char lm_head[] = "lm_head.weight";
static const char scale_suffix[] = "_scale"; // of an int8 tensor's scales

struct weight_files {
    char path[DT_PATH]; // of the one file or the index, for messages
    int n;
    struct dt_safetensors *files[FILES_MAX];
};

// A file of the same directory: the index is hostile and must not lead elsewhere.
static bool is_plain_name(const char *name)
{
    size_t length = strlen(name), suffix = strlen(".safetensors");
    return name[0] != '.' && !strchr(name, '/') && length > suffix &&
           strcmp(name + length - suffix, ".safetensors") == 0;
}

static dt_status open_listed(struct weight_files *set, const char *path, int *index)
{
    for (*index = 0; *index < set->n; ++*index)
        if (strcmp(set->files[*index]->path, path) == 0)
            return DT_OK;
    if (set->n == FILES_MAX)
        return DT_FAIL(DT_USER, "merge some of them", "%s lists more than %d files", set->path,
                       FILES_MAX);
    DT_TRY_NOTE(dt_safetensors_open(path, &set->files[set->n]), "listed in %s", set->path);
    set->n++;
    return DT_OK;
}

static dt_status open_entry(struct weight_files *set, const char *dir, const cJSON *map,
                            const cJSON *entry)
{
    const char *name;
    char path[DT_PATH];
    int index;
    DT_TRY(dt_json_string(set->path, map, entry->string, &name));
    if (!is_plain_name(name))
        return dt_json_reject(set->path, map, entry->string,
                              "the name of a .safetensors file in the same directory");
    DT_TRY(dt_path(path, "%s/%s", dir, name));
    DT_TRY(open_listed(set, path, &index));
    if (!dt_safetensors_find(set->files[index], entry->string))
        return DT_FAIL(DT_USER, "download the directory again", "%s: %s should be in %s but is not",
                       set->path, entry->string, name);
    return DT_OK;
}

static dt_status open_map(struct weight_files *set, const char *dir, const cJSON *root)
{
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map"), *entry;
    if (!cJSON_IsObject(map))
        return dt_json_reject(set->path, root, "weight_map", "an object of tensor names");
    cJSON_ArrayForEach(entry, map) DT_TRY(open_entry(set, dir, map, entry));
    return DT_OK;
}

static dt_status open_index(struct weight_files *set, const char *dir)
{
    cJSON *root;
    DT_TRY(dt_json_read(set->path, INDEX_LIMIT, &root));
    dt_status status = open_map(set, dir, root);
    cJSON_Delete(root);
    return status;
}

// The single file goes first, as in transformers.
static dt_status open_files(struct weight_files *set, const char *dir, bool ema)
{
    set->n = 0;
    DT_TRY(dt_path(set->path, "%s/%s", dir, ema ? DT_HF_EMA : "model.safetensors"));
    if (dt_file_exists(set->path)) {
        DT_TRY(dt_safetensors_open(set->path, &set->files[0]));
        set->n = 1;
        return DT_OK;
    }
    if (ema)
        return DT_FAIL(DT_USER, "use a checkpoint of a run with optim.ema above 0",
                       "%s has no moving average of the weights: %s is missing", dir, DT_HF_EMA);
    DT_TRY(dt_path(set->path, "%s/model.safetensors.index.json", dir));
    if (dt_file_exists(set->path))
        return open_index(set, dir);
    return DT_FAIL(DT_USER,
                   "other formats: load the model in transformers and save it again "
                   "(save_pretrained writes safetensors)",
                   "%s has neither model.safetensors nor model.safetensors.index.json", dir);
}

struct found {
    const struct dt_safetensors *file;
    const struct dt_safetensor *tensor; // NULL: not there
    int times;
};

static struct found find_name(const struct weight_files *set, const char *name)
{
    struct found found = {0};
    for (int i = 0; i < set->n; i++) {
        const struct dt_safetensor *tensor = dt_safetensors_find(set->files[i], name);
        if (tensor)
            found = (struct found){set->files[i], tensor, found.times + 1};
    }
    return found;
}

static struct found find_row(const struct weight_files *set, const struct dt_param *row)
{
    struct found found = find_name(set, row->name);
    if (found.times == 0 && strcmp(row->name, embeddings) == 0)
        found = find_name(set, embeddings_official);
    return found;
}

static const char *shape_text(int n_dims, const int64_t *shape, char text[SHAPE_TEXT])
{
    snprintf(text, SHAPE_TEXT, "[");
    for (int i = 0; i < n_dims; i++)
        dt_append(text, SHAPE_TEXT, "%s%lld", i ? ", " : "", (long long)shape[i]);
    dt_append(text, SHAPE_TEXT, "]");
    return text;
}

static bool same_shape(const struct dt_param *row, const struct dt_safetensor *tensor)
{
    return row->n_dims == tensor->n_dims &&
           memcmp(row->shape, tensor->shape, (size_t)row->n_dims * sizeof *row->shape) == 0;
}

// The vocabulary's tensors, whose first dimension a writer may have padded.
static bool is_padded(const struct dt_param *row, const struct dt_safetensor *tensor)
{
    return (strcmp(row->name, embeddings) == 0 || strcmp(row->name, lm_head) == 0) &&
           tensor->n_dims == 2 && tensor->shape[1] == row->shape[1] &&
           tensor->shape[0] > row->shape[0];
}

// The scales of an int8 tensor, one a row.
static struct found find_scale(const struct weight_files *set, const struct dt_safetensor *tensor)
{
    char name[SCALE_NAME];
    snprintf(name, sizeof name, "%s%s", tensor->name, scale_suffix);
    return find_name(set, name);
}

static void check_scale(struct dt_problems *problems, const struct dt_param *row,
                        const struct dt_safetensor *tensor, const struct found *scale)
{
    if (scale->times != 1)
        dt_problems_add(problems, "%s is int8, and %s%s is %s", tensor->name, tensor->name,
                        scale_suffix, scale->times ? "in several files" : "missing");
    else if (scale->tensor->dtype != DT_F32 || scale->tensor->n_dims != 1 ||
             scale->tensor->shape[0] != row->shape[0])
        dt_problems_add(problems, "%s must be fp32 [%lld]", scale->tensor->name,
                        (long long)row->shape[0]);
}

static void check_found(struct dt_problems *problems, const struct dt_param *row,
                        const struct found *found)
{
    char here[SHAPE_TEXT], wanted[SHAPE_TEXT];
    const struct dt_safetensor *tensor = found->tensor;
    if (found->times == 0) {
        dt_problems_add(problems, "%s is missing", row->name);
        return;
    }
    if (found->times > 1)
        dt_problems_add(problems, "%s is in %d files", tensor->name, found->times);
    if (tensor->dtype != DT_F32 && tensor->dtype != DT_BF16 && tensor->dtype != DT_F16 &&
        tensor->dtype != DT_I8)
        dt_problems_add(problems, "%s is %s; it must be fp32, bf16, fp16 or int8", tensor->name,
                        dt_dtype_name(tensor->dtype));
    if (!same_shape(row, tensor))
        dt_problems_add(problems, "%s is %s, the model's is %s%s", tensor->name,
                        shape_text(tensor->n_dims, tensor->shape, here),
                        shape_text(row->n_dims, row->shape, wanted),
                        is_padded(row, tensor)
                            ? ": the file's vocabulary is padded; set vocab_size to its number of "
                              "rows, or remove the last ones"
                            : "");
}

// NAME_scale beside an int8 NAME of the table.
static bool is_scale(const struct weight_files *set, const struct dt_params *params,
                     const char *name)
{
    char owner[DT_PARAM_NAME];
    size_t n = strlen(name), suffix = strlen(scale_suffix);
    if (n <= suffix || n - suffix >= sizeof owner || strcmp(name + n - suffix, scale_suffix) != 0)
        return false;
    snprintf(owner, sizeof owner, "%.*s", (int)(n - suffix), name);
    struct found found = find_name(set, owner);
    return dt_params_find(params, owner) && found.tensor && found.tensor->dtype == DT_I8;
}

static bool is_known(const struct dt_params *params, bool tied, const char *name)
{
    if (dt_params_find(params, name) || (tied && strcmp(name, lm_head) == 0))
        return true;
    return strcmp(name, embeddings_official) == 0 && dt_params_find(params, embeddings);
}

static void check_unknown(struct dt_problems *problems, const struct weight_files *set,
                          const struct dt_params *params, bool tied)
{
    for (int i = 0; i < set->n; i++)
        for (int j = 0; j < set->files[i]->n_tensors; j++) {
            const char *name = set->files[i]->tensors[j].name;
            if (!is_known(params, tied, name) && !is_scale(set, params, name))
                dt_problems_add(problems, "%.120s is not a tensor of this model", name);
        }
    if (find_name(set, embeddings).tensor && find_name(set, embeddings_official).tensor)
        dt_problems_add(problems, "%s and %s are both present", embeddings, embeddings_official);
}

static dt_status check_all(const struct weight_files *set, const struct dt_params *params,
                           bool tied)
{
    struct dt_problems problems = {0};
    for (int i = 0; i < params->n; i++) {
        struct found found = find_row(set, &params->rows[i]);
        check_found(&problems, &params->rows[i], &found);
        if (found.tensor && found.tensor->dtype == DT_I8) {
            struct found scale = find_scale(set, found.tensor);
            check_scale(&problems, &params->rows[i], found.tensor, &scale);
        }
    }
    const struct dt_param *row = dt_params_find(params, embeddings);
    struct found head = find_name(set, lm_head); // of a tied model: a copy, not read
    if (tied && row && head.times > 0)
        check_found(&problems, row, &head);
    check_unknown(&problems, set, params, tied);
    return dt_problems_report(&problems,
                              "config.json and the weights must belong to the same model",
                              "%s does not fit the model", set->path);
}

static dt_status apply_scale(const struct weight_files *set, const struct dt_param *row,
                             const struct dt_safetensor *tensor, float *weight)
{
    struct found found = find_scale(set, tensor);
    int64_t width = row->file_count / row->shape[0];
    for (int64_t i = 0; i < row->shape[0]; i++) {
        float scale;
        DT_TRY(dt_safetensors_read_f32(found.file, found.tensor, i, 1, &scale));
        for (int64_t j = 0; j < width; j++)
            weight[i * width + j] *= scale;
    }
    return DT_OK;
}

static dt_status read_row(const struct weight_files *set, const struct dt_param *row, float *weight)
{
    struct found found = find_row(set, row);
    DT_TRY(dt_safetensors_read_f32(found.file, found.tensor, 0, row->file_count, weight));
    if (found.tensor->dtype == DT_I8)
        DT_TRY(apply_scale(set, row, found.tensor, weight));
    int64_t bad = dt_find_outside(weight, row->file_count, -FLT_MAX, FLT_MAX);
    if (bad == row->file_count)
        return DT_OK;
    return DT_FAIL(DT_USER, "the model diverged, or the file is damaged",
                   "%s: %s holds %g at element %lld; all must be finite", found.file->path,
                   found.tensor->name, (double)weight[bad], (long long)bad);
}

static void close_files(struct weight_files *set)
{
    for (int i = 0; set && i < set->n; i++)
        dt_safetensors_close(set->files[i]);
    free(set);
}

// Files whose tensors are those of the table; close_files afterwards, also after a failure.
static dt_status open_checked(const char *dir, bool ema, const struct dt_params *params, bool tied,
                              struct weight_files **out)
{
    DT_TRY(DT_NEW(out, 1, "reading %s", dir));
    DT_TRY(open_files(*out, dir, ema));
    return check_all(*out, params, tied);
}

dt_status dt_hf_read_weights(const char *dir, bool ema, const struct dt_params *params, bool tied,
                             float *weights)
{
    struct weight_files *set;
    dt_status status = open_checked(dir, ema, params, tied, &set);
    if (status == DT_OK)
        memset(weights, 0, (size_t)params->elements * sizeof *weights);
    for (int i = 0; status == DT_OK && i < params->n; i++)
        status = read_row(set, &params->rows[i], weights + params->rows[i].offset);
    close_files(set);
    return status;
}

static enum dt_dtype type_of(const struct weight_files *set)
{
    bool bytes = false, wide = false;
    for (int i = 0; i < set->n; i++)
        for (int j = 0; j < set->files[i]->n_tensors; j++) {
            bytes = bytes || set->files[i]->tensors[j].dtype == DT_I8;
            wide = wide || set->files[i]->tensors[j].dtype == DT_F32;
        }
    return bytes ? DT_I8 : wide ? DT_F32 : DT_BF16;
}

dt_status dt_hf_check_weights(const char *dir, bool ema, const struct dt_model_config *config,
                              enum dt_dtype *type)
{
    struct dt_model_config full = *config;
    struct dt_params params;
    struct weight_files *set;
    DT_TRY(dt_model_config_check(&full));
    DT_TRY(dt_model_list(&full, &params, NULL));
    dt_status status = open_checked(dir, ema, &params, full.tie_embeddings, &set);
    if (status == DT_OK && type)
        *type = type_of(set);
    close_files(set);
    dt_params_free(&params);
    return status;
}

// Whether a file holds row i in int8: all of it is a linear layer's, and no other part needs it.
static bool is_int8(const struct dt_params *params, const struct dt_int8 *int8, int i)
{
    const struct dt_param *row = &params->rows[i];
    return int8 && int8[i].out >= row->shape[0] && int8[i].in * row->shape[0] == row->file_count &&
           !row->shared;
}

// Wider elements first: fp32 rows and the scales of others, then int8.
static int list_entries(const struct dt_params *params, const struct dt_int8 *int8,
                        struct dt_safetensors_entry *entries, char (*names)[SCALE_NAME])
{
    int n = 0;
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        bool bytes = is_int8(params, int8, i);
        entries[n] = (struct dt_safetensors_entry){
            .name = names[n], .dtype = DT_F32, .n_dims = bytes ? 1 : row->n_dims};
        memcpy(entries[n].shape, row->shape, sizeof row->shape);
        snprintf(names[n], sizeof names[n], "%s%s", row->name, bytes ? scale_suffix : "");
        n++;
    }
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        if (!is_int8(params, int8, i))
            continue;
        entries[n] =
            (struct dt_safetensors_entry){.name = row->name, .dtype = DT_I8, .n_dims = row->n_dims};
        memcpy(entries[n].shape, row->shape, sizeof row->shape);
        n++;
    }
    return n;
}

static dt_status create_file(const char *path, const struct dt_params *params,
                             const struct dt_int8 *int8, struct dt_safetensors_writer **writer)
{
    static const char *const metadata[] = {"format", "pt"};
    struct dt_safetensors_entry *entries = NULL;
    char(*names)[SCALE_NAME] = NULL;
    dt_status status = DT_NEW(&entries, 2 * params->n, "the tensors of %s", path);
    if (status == DT_OK)
        status = DT_NEW(&names, params->n, "the names of %s", path);
    if (status == DT_OK)
        status = dt_safetensors_create(path, entries, list_entries(params, int8, entries, names),
                                       metadata, 1, writer);
    free(entries);
    free(names);
    return status;
}

static dt_status write_rows(struct dt_safetensors_writer *writer, const struct dt_params *params,
                            const float *weights, const struct dt_int8 *int8)
{
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        bool bytes = is_int8(params, int8, i);
        const float *data = bytes ? int8[i].scale : weights + row->offset;
        int64_t count = bytes ? row->shape[0] : row->file_count;
        DT_TRY(dt_safetensors_write(writer, data, count * (int64_t)sizeof *data));
    }
    for (int i = 0; i < params->n; i++)
        if (is_int8(params, int8, i))
            DT_TRY(dt_safetensors_write(writer, int8[i].data, params->rows[i].file_count));
    return DT_OK;
}

static dt_status write_file(const char *path, const struct dt_params *params, const float *weights,
                            const struct dt_int8 *int8, int64_t *size, uint64_t *hash)
{
    struct dt_safetensors_writer *writer = NULL;
    DT_TRY(create_file(path, params, int8, &writer));
    dt_status status = write_rows(writer, params, weights, int8);
    if (status == DT_OK)
        return dt_safetensors_finish(writer, size, hash);
    dt_safetensors_discard(writer);
    return status;
}

dt_status dt_hf_write_weights(const char *path, const struct dt_params *params,
                              const float *weights, int64_t *size, uint64_t *hash)
{
    return write_file(path, params, weights, NULL, size, hash);
}

dt_status dt_hf_write_int8(const char *path, const struct dt_params *params, const float *weights,
                           const struct dt_int8 *int8)
{
    return write_file(path, params, weights, int8, NULL, NULL);
}
