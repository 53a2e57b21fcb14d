// Reads and writes weights in Hugging Face directories. A directory holds model.safetensors, or
// several files that model.safetensors.index.json lists; either way each tensor of the table must
// be there once, in its shape, and nothing else.
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

// Opens the file that an entry of the index names, unless it is open. The index is hostile: a name
// must not lead to another directory.
static dt_status open_entry(struct weight_files *set, const char *dir, const cJSON *map,
                            const cJSON *entry)
{
    const char *name;
    char path[DT_PATH];
    int i = 0;
    DT_TRY(dt_json_string(set->path, map, entry->string, &name));
    const char *suffix = strrchr(name, '.');
    if (name[0] == '.' || strchr(name, '/') || !suffix || strcmp(suffix, ".safetensors") != 0)
        return dt_json_reject(set->path, map, entry->string,
                              "the name of a .safetensors file in the same directory");
    DT_TRY(dt_path(path, "%s/%s", dir, name));
    while (i < set->n && strcmp(set->files[i]->path, path) != 0)
        i++;
    if (i == FILES_MAX)
        return DT_FAIL(DT_USER, "merge some of them", "%s lists more than %d files", set->path,
                       FILES_MAX);
    if (i == set->n) {
        DT_TRY_NOTE(dt_safetensors_open(path, &set->files[i]), "listed in %s", set->path);
        set->n++;
    }
    if (!dt_safetensors_find(set->files[i], entry->string))
        return DT_FAIL(DT_USER, "download the directory again", "%s: %s should be in %s but is not",
                       set->path, entry->string, name);
    return DT_OK;
}

static dt_status open_index(struct weight_files *set, const char *dir)
{
    cJSON *root;
    DT_TRY(dt_json_read(set->path, INDEX_LIMIT, &root));
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    dt_status status = cJSON_IsObject(map) ? DT_OK
                                           : dt_json_reject(set->path, root, "weight_map",
                                                            "an object of tensor names");
    for (const cJSON *entry = map ? map->child : NULL; entry && status == DT_OK;
         entry = entry->next)
        status = open_entry(set, dir, map, entry);
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

// The scales of an int8 tensor, one a row.
static struct found find_scale(const struct weight_files *set, const struct dt_safetensor *tensor)
{
    char name[SCALE_NAME];
    snprintf(name, sizeof name, "%s%s", tensor->name, scale_suffix);
    return find_name(set, name);
}

static void check_found(struct dt_problems *problems, const struct dt_param *row,
                        const struct found *found)
{
    char here[SHAPE_TEXT], wanted[SHAPE_TEXT];
    const struct dt_safetensor *tensor = found->tensor;
    if (found->times == 0 && !row->optional)
        dt_problems_add(problems, "%s is missing", row->name);
    if (found->times == 0)
        return;
    if (found->times > 1)
        dt_problems_add(problems, "%s is in %d files", tensor->name, found->times);
    if (tensor->dtype != DT_F32 && tensor->dtype != DT_BF16 && tensor->dtype != DT_F16 &&
        tensor->dtype != DT_I8)
        dt_problems_add(problems, "%s is %s; it must be fp32, bf16, fp16 or int8", tensor->name,
                        dt_dtype_name(tensor->dtype));
    if (row->n_dims == tensor->n_dims &&
        memcmp(row->shape, tensor->shape, (size_t)row->n_dims * sizeof *row->shape) == 0)
        return;
    // The vocabulary's tensors, whose first dimension a writer may have padded.
    bool padded = (strcmp(row->name, embeddings) == 0 || strcmp(row->name, lm_head) == 0) &&
                  tensor->n_dims == 2 && tensor->shape[1] == row->shape[1] &&
                  tensor->shape[0] > row->shape[0];
    dt_problems_add(problems, "%s is %s, the model's is %s%s", tensor->name,
                    shape_text(tensor->n_dims, tensor->shape, here),
                    shape_text(row->n_dims, row->shape, wanted),
                    padded ? ": the file's vocabulary is padded; set vocab_size to its number of "
                             "rows, or remove the last ones"
                           : "");
}

// Whether a tensor of this name may be in the files: one of the table, a tied head's copy, the
// official name of the embedding, or NAME_scale beside an int8 NAME.
static bool is_known(const struct weight_files *set, const struct dt_params *params, bool tied,
                     const char *name)
{
    char owner[DT_PARAM_NAME];
    size_t n = strlen(name), suffix = strlen(scale_suffix);
    if (dt_params_find(params, name) || (tied && strcmp(name, lm_head) == 0) ||
        (strcmp(name, embeddings_official) == 0 && dt_params_find(params, embeddings)))
        return true;
    if (n <= suffix || n - suffix >= sizeof owner || strcmp(name + n - suffix, scale_suffix) != 0)
        return false;
    snprintf(owner, sizeof owner, "%.*s", (int)(n - suffix), name);
    struct found found = find_name(set, owner);
    return dt_params_find(params, owner) && found.tensor && found.tensor->dtype == DT_I8;
}

static dt_status check_all(const struct weight_files *set, const struct dt_params *params,
                           bool tied)
{
    struct dt_problems problems = {0};
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        struct found found = find_row(set, row);
        check_found(&problems, row, &found);
        if (!found.tensor || found.tensor->dtype != DT_I8)
            continue;
        const char *name = found.tensor->name;
        struct found scale = find_scale(set, found.tensor);
        if (scale.times != 1)
            dt_problems_add(&problems, "%s is int8, and %s%s is %s", name, name, scale_suffix,
                            scale.times ? "in several files" : "missing");
        else if (scale.tensor->dtype != DT_F32 || scale.tensor->n_dims != 1 ||
                 scale.tensor->shape[0] != row->shape[0])
            dt_problems_add(&problems, "%s must be fp32 [%lld]", scale.tensor->name,
                            (long long)row->shape[0]);
    }
    const struct dt_param *row = dt_params_find(params, embeddings);
    struct found head = find_name(set, lm_head); // of a tied model: a copy, not read
    if (tied && row && head.times > 0)
        check_found(&problems, row, &head);
    for (int i = 0; i < set->n; i++)
        for (int j = 0; j < set->files[i]->n_tensors; j++)
            if (!is_known(set, params, tied, set->files[i]->tensors[j].name))
                dt_problems_add(&problems, "%.120s is not a tensor of this model",
                                set->files[i]->tensors[j].name);
    if (find_name(set, embeddings).tensor && find_name(set, embeddings_official).tensor)
        dt_problems_add(&problems, "%s and %s are both present", embeddings, embeddings_official);
    return dt_problems_report(&problems,
                              "config.json and the weights must belong to the same model",
                              "%s does not fit the model", set->path);
}

static dt_status read_row(const struct weight_files *set, const struct dt_param *row, float *weight)
{
    struct found found = find_row(set, row), scales;
    int64_t n = row->file_count, width = n / row->shape[0];
    for (int64_t i = 0; i < n && !found.tensor; i++)
        weight[i] = row->init(row, i, NULL);
    if (!found.tensor)
        return DT_OK;
    scales = find_scale(set, found.tensor);
    DT_TRY(dt_safetensors_read_f32(found.file, found.tensor, 0, n, weight));
    for (int64_t i = 0; found.tensor->dtype == DT_I8 && i < row->shape[0]; i++) {
        float scale;
        DT_TRY(dt_safetensors_read_f32(scales.file, scales.tensor, i, 1, &scale));
        for (int64_t j = 0; j < width; j++)
            weight[i * width + j] *= scale;
    }
    int64_t bad = dt_find_outside(weight, n, -FLT_MAX, FLT_MAX);
    if (bad == n)
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

dt_status dt_hf_check_weights(const char *dir, bool ema, const struct dt_model_config *config,
                              enum dt_dtype *type)
{
    struct dt_model_config full = *config;
    struct dt_params params;
    struct weight_files *set;
    bool bytes = false, wide = false;
    DT_TRY(dt_model_config_check(&full));
    DT_TRY(dt_model_list(&full, &params, NULL));
    dt_status status = open_checked(dir, ema, &params, full.tie_embeddings, &set);
    for (int i = 0; status == DT_OK && i < set->n; i++)
        for (int j = 0; j < set->files[i]->n_tensors; j++) {
            bytes |= set->files[i]->tensors[j].dtype == DT_I8;
            wide |= set->files[i]->tensors[j].dtype == DT_F32;
        }
    if (type)
        *type = bytes ? DT_I8 : wide ? DT_F32 : DT_BF16;
    close_files(set);
    dt_params_free(&params);
    return status;
}

// A tensor to be written.
struct piece {
    char name[SCALE_NAME];
    const void *data;
};

// Wider elements first: fp32 rows and the scales of others, then int8. Gives the number of tensors.
static int list_pieces(const struct dt_params *params, const float *weights,
                       const struct dt_int8 *int8, struct piece *pieces,
                       struct dt_safetensors_entry *entries)
{
    int n = 0;
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < params->n; i++) {
            const struct dt_param *row = &params->rows[i];
            // In int8 where all of the row is a linear layer's, and no other part needs it.
            bool bytes = int8 && int8[i].out >= row->shape[0] &&
                         int8[i].in * row->shape[0] == row->file_count && !row->shared;
            bool scale = bytes && !last;
            if (last && !bytes)
                continue;
            pieces[n].data = scale  ? (const void *)int8[i].scale
                             : last ? (const void *)int8[i].data
                                    : weights + row->offset;
            snprintf(pieces[n].name, SCALE_NAME, "%s%s", row->name, scale ? scale_suffix : "");
            entries[n] = (struct dt_safetensors_entry){.name = pieces[n].name,
                                                       .dtype = last ? DT_I8 : DT_F32,
                                                       .n_dims = scale ? 1 : row->n_dims};
            memcpy(entries[n++].shape, row->shape, sizeof row->shape);
        }
    return n;
}

static dt_status write_file(const char *path, const struct dt_params *params, const float *weights,
                            const struct dt_int8 *int8, int64_t *size, uint64_t *hash)
{
    static const char *const metadata[] = {"format", "pt"};
    struct dt_safetensors_writer *writer = NULL;
    struct dt_safetensors_entry *entries = NULL;
    struct piece *pieces = NULL;
    dt_status status;
    DT_TRY_GOTO(status, out, DT_NEW(&entries, 2 * params->n, "the tensors of %s", path));
    DT_TRY_GOTO(status, out, DT_NEW(&pieces, 2 * params->n, "the names of %s", path));
    int n = list_pieces(params, weights, int8, pieces, entries);
    DT_TRY_GOTO(status, out, dt_safetensors_create(path, entries, n, metadata, 1, &writer));
    for (int i = 0; i < n && status == DT_OK; i++) {
        int64_t bytes = dt_dtype_size(entries[i].dtype);
        for (int k = 0; k < entries[i].n_dims; k++)
            bytes *= entries[i].shape[k];
        status = dt_safetensors_write(writer, pieces[i].data, bytes);
    }
    if (status == DT_OK)
        status = dt_safetensors_finish(writer, size, hash);
    else
        dt_safetensors_discard(writer);
out:
    free(entries);
    free(pieces);
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
