// Reads and writes weights in Hugging Face directories. A directory has model.safetensors, or
// several files listed in model.safetensors.index.json. Either way it must have each tensor of the
// table once, in its shape, and nothing else.
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
enum { FILES_MAX = 256 };                                                         // per directory
#define INDEX "model.safetensors.index.json"

static const char embeddings[] = "backbone.embeddings.weight";
// Prefixes of names in the table, and of the same tensors in other files: state-spaces/mamba, and
// transformers' NemotronH.
static const struct {
    const char *ours, *theirs;
} spellings[] = {{"backbone.embeddings.", "backbone.embedding."}, {"backbone.", "model."}};
enum { SPELLINGS = sizeof spellings / sizeof *spellings };
static const char lm_head[] = "lm_head.weight";
static const char scale_suffix[] = "_scale"; // of an int8 tensor's scales

struct weight_files {
    char path[DT_PATH]; // of the single file or the index, for messages
    int n;
    struct dt_safetensors *files[FILES_MAX];
};

// Opens the file of an index entry if necessary. The index is untrusted: a name must not lead to
// another directory.
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

// The single file takes precedence, as in transformers.
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
    DT_TRY(dt_path(set->path, "%s/" INDEX, dir));
    if (dt_file_exists(set->path))
        return open_index(set, dir);
    return DT_FAIL(DT_USER,
                   "other formats: load the model in transformers and save it again "
                   "(save_pretrained writes safetensors)",
                   "%s has neither model.safetensors nor " INDEX, dir);
}

struct found {
    const struct dt_safetensors *file;
    const struct dt_safetensor *tensor; // NULL: missing
    int times;
    const char *also; // a duplicate of the tensor under another spelling; or NULL
};

static struct found find_exactly(const struct weight_files *set, const char *name)
{
    struct found found = {0};
    for (int i = 0; i < set->n; i++) {
        const struct dt_safetensor *tensor = dt_safetensors_find(set->files[i], name);
        if (tensor)
            found = (struct found){set->files[i], tensor, found.times + 1, NULL};
    }
    return found;
}

// Replaces the prefix `from` of a name; false: no such prefix.
static bool respell(const char *name, const char *from, const char *to, char out[SCALE_NAME])
{
    size_t n = strlen(from);
    return strncmp(name, from, n) == 0 &&
           snprintf(out, SCALE_NAME, "%s%s", to, name + n) < SCALE_NAME;
}

// Finds the tensor that the table calls `name`.
static struct found find_name(const struct weight_files *set, const char *name)
{
    struct found found = find_exactly(set, name), other;
    char text[SCALE_NAME];
    for (int i = 0; i < SPELLINGS; i++) {
        if (!respell(name, spellings[i].ours, spellings[i].theirs, text))
            continue;
        other = find_exactly(set, text);
        if (found.tensor && other.tensor)
            found.also = other.tensor->name;
        else if (other.tensor)
            found = other;
    }
    return found;
}

// A tensor expected in a file: rows [first, first + n) of a row of the table.
struct wanted {
    const struct dt_param *row;
    char name[DT_PARAM_NAME];
    int64_t first, n;
};

static struct wanted whole_row(const struct dt_param *row, const char *name)
{
    struct wanted wanted = {.row = row, .n = row->shape[0]};
    snprintf(wanted.name, sizeof wanted.name, "%s", name);
    return wanted;
}

// Lists the tensors that files should have for a row: the whole, or its slices.
static int list_wanted(const struct weight_files *set, const struct dt_param *row,
                       struct wanted out[DT_PARAM_SLICES])
{
    out[0] = whole_row(row, row->name);
    if (row->n_slices == 0 || (set && find_name(set, row->name).tensor))
        return 1;
    for (int i = 0; i < row->n_slices; i++) {
        out[i] =
            (struct wanted){.row = row, .first = row->slices[i].first, .n = row->slices[i].rows};
        dt_param_slice_name(row, i, out[i].name);
    }
    return row->n_slices;
}

static const char *shape_text(int n_dims, const int64_t *shape, char text[SHAPE_TEXT])
{
    snprintf(text, SHAPE_TEXT, "[");
    for (int i = 0; i < n_dims; i++)
        dt_append(text, SHAPE_TEXT, "%s%lld", i ? ", " : "", (long long)shape[i]);
    dt_append(text, SHAPE_TEXT, "]");
    return text;
}

// Finds the scales of an int8 tensor, one per row.
static struct found find_scale(const struct weight_files *set, const struct dt_safetensor *tensor)
{
    char name[SCALE_NAME];
    snprintf(name, sizeof name, "%s%s", tensor->name, scale_suffix);
    return find_name(set, name);
}

static void check_found(struct dt_problems *problems, const struct wanted *wanted,
                        const struct found *found)
{
    char here[SHAPE_TEXT], ours[SHAPE_TEXT];
    const struct dt_safetensor *tensor = found->tensor;
    const struct dt_param *row = wanted->row;
    int64_t shape[DT_PARAM_DIMS];
    memcpy(shape, row->shape, sizeof shape);
    shape[0] = wanted->n;
    if (found->times == 0 && !row->optional)
        dt_problems_add(problems, "%s is missing", wanted->name);
    if (found->times == 0)
        return;
    if (found->also)
        dt_problems_add(problems, "%s and %s are both present", tensor->name, found->also);
    if (found->times > 1)
        dt_problems_add(problems, "%s is in %d files", tensor->name, found->times);
    if (tensor->dtype != DT_F32 && tensor->dtype != DT_BF16 && tensor->dtype != DT_F16 &&
        tensor->dtype != DT_I8)
        dt_problems_add(problems, "%s is %s; it must be fp32, bf16, fp16 or int8", tensor->name,
                        dt_dtype_name(tensor->dtype));
    if (row->n_dims == tensor->n_dims &&
        memcmp(shape, tensor->shape, (size_t)row->n_dims * sizeof *shape) == 0)
        return;
    // The first dimension of the vocabulary's tensors may be padded by the writer.
    bool padded = (strcmp(row->name, embeddings) == 0 || strcmp(row->name, lm_head) == 0) &&
                  tensor->n_dims == 2 && tensor->shape[1] == shape[1] &&
                  tensor->shape[0] > shape[0];
    dt_problems_add(problems, "%s is %s, the model's is %s%s", tensor->name,
                    shape_text(tensor->n_dims, tensor->shape, here),
                    shape_text(row->n_dims, shape, ours),
                    padded ? ": the file's vocabulary is padded; set vocab_size to its number of "
                             "rows, or remove the last ones"
                           : "");
}

static bool in_table(const struct dt_params *params, const char *name)
{
    char slice[DT_PARAM_NAME];
    for (int i = 0; i < params->n; i++)
        for (int k = 0; k < params->rows[i].n_slices; k++) {
            dt_param_slice_name(&params->rows[i], k, slice);
            if (strcmp(slice, name) == 0)
                return true;
        }
    return dt_params_find(params, name);
}

// Whether files may have a tensor of this name: one of the table, a tied head's copy, or NAME_scale
// of an int8 NAME.
static bool is_known(const struct weight_files *set, const struct dt_params *params, bool tied,
                     const char *name)
{
    char ours[SCALE_NAME], owner[SCALE_NAME];
    size_t n = strlen(name), suffix = strlen(scale_suffix);
    if (in_table(params, name) || (tied && strcmp(name, lm_head) == 0))
        return true;
    for (int i = 0; i < SPELLINGS; i++)
        if (respell(name, spellings[i].theirs, spellings[i].ours, ours) && in_table(params, ours))
            return true;
    if (n <= suffix || n - suffix >= sizeof owner || strcmp(name + n - suffix, scale_suffix) != 0)
        return false;
    snprintf(owner, sizeof owner, "%.*s", (int)(n - suffix), name);
    struct found found = find_exactly(set, owner);
    return found.tensor && found.tensor->dtype == DT_I8 && is_known(set, params, false, owner);
}

static void check_wanted(struct dt_problems *problems, const struct weight_files *set,
                         const struct wanted *wanted)
{
    struct found found = find_name(set, wanted->name);
    check_found(problems, wanted, &found);
    if (!found.tensor || found.tensor->dtype != DT_I8)
        return;
    const char *name = found.tensor->name;
    struct found scale = find_scale(set, found.tensor);
    if (scale.times != 1)
        dt_problems_add(problems, "%s is int8, and %s%s is %s", name, name, scale_suffix,
                        scale.times ? "in several files" : "missing");
    else if (scale.tensor->dtype != DT_F32 || scale.tensor->n_dims != 1 ||
             scale.tensor->shape[0] != wanted->n)
        dt_problems_add(problems, "%s must be fp32 [%lld]", scale.tensor->name,
                        (long long)wanted->n);
}

static dt_status check_all(const struct weight_files *set, const struct dt_params *params,
                           bool tied)
{
    struct dt_problems problems = {0};
    struct wanted wanted[DT_PARAM_SLICES];
    for (int i = 0; i < params->n; i++)
        for (int k = 0, n = list_wanted(set, &params->rows[i], wanted); k < n; k++)
            check_wanted(&problems, set, &wanted[k]);
    const struct dt_param *row = dt_params_find(params, embeddings);
    struct found head = find_name(set, lm_head); // in a tied model: a copy, not read
    if (tied && row && head.times > 0) {
        struct wanted copy = whole_row(row, lm_head);
        check_found(&problems, &copy, &head);
    }
    for (int i = 0; i < set->n; i++)
        for (int j = 0; j < set->files[i]->n_tensors; j++)
            if (!is_known(set, params, tied, set->files[i]->tensors[j].name))
                dt_problems_add(&problems, "%.120s is not a tensor of this model",
                                set->files[i]->tensors[j].name);
    return dt_problems_report(&problems,
                              "config.json and the weights must belong to the same model",
                              "%s does not fit the model", set->path);
}

static dt_status read_tensor(const struct weight_files *set, const struct wanted *wanted,
                             float *weight)
{
    struct found found = find_name(set, wanted->name), scales;
    int64_t width = wanted->row->file_count / wanted->row->shape[0], n = wanted->n * width;
    scales = find_scale(set, found.tensor);
    DT_TRY(dt_safetensors_read_f32(found.file, found.tensor, 0, n, weight));
    for (int64_t i = 0; found.tensor->dtype == DT_I8 && i < wanted->n; i++) {
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

static dt_status read_row(const struct weight_files *set, const struct dt_param *row, float *weight)
{
    struct wanted wanted[DT_PARAM_SLICES];
    int n = list_wanted(set, row, wanted);
    bool missing = !find_name(set, wanted[0].name).tensor; // an optional row
    for (int64_t i = 0; i < row->file_count && missing; i++)
        weight[i] = row->init(row, i, NULL);
    for (int k = 0; k < n && !missing; k++)
        DT_TRY(read_tensor(set, &wanted[k],
                           weight + wanted[k].first * (row->file_count / row->shape[0])));
    return DT_OK;
}

static void close_files(struct weight_files *set)
{
    for (int i = 0; set && i < set->n; i++)
        dt_safetensors_close(set->files[i]);
    free(set);
}

// Opens files whose tensors match the table. Call close_files afterwards, even on failure.
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

// A tensor to write.
struct piece {
    char name[SCALE_NAME];
    const void *data; // fp32, or int8 if the entry is
};

struct pieces {
    int n;
    struct piece *list;
    struct dt_safetensors_entry *entries;
};

static void add_piece(struct pieces *p, const struct wanted *w, const char *suffix,
                      const void *data, enum dt_dtype dtype, int n_dims)
{
    struct dt_safetensors_entry *entry = &p->entries[p->n];
    struct piece *piece = &p->list[p->n++];
    snprintf(piece->name, SCALE_NAME, "%s%s", w->name, suffix);
    piece->data = data;
    *entry = (struct dt_safetensors_entry){.name = piece->name, .dtype = dtype, .n_dims = n_dims};
    memcpy(entry->shape, w->row->shape, sizeof w->row->shape);
    entry->shape[0] = w->n;
}

// Lists wider elements first: fp32 or bf16 rows and scales, then int8.
static void list_pieces(const struct dt_params *params, const float *weights,
                        const struct dt_hf_format *format, struct pieces *p)
{
    struct wanted wanted[DT_PARAM_SLICES];
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < params->n; i++) {
            const struct dt_param *row = &params->rows[i];
            const struct dt_int8 *int8 = format->int8 ? &format->int8[i] : NULL;
            int64_t width = row->file_count / row->shape[0];
            // A row is int8 if it belongs completely to a linear layer and to no other part.
            bool bytes = int8 && int8->out >= row->shape[0] && int8->in == width && !row->shared;
            int n = list_wanted(NULL, row, wanted);
            if (format->official)
                n = 1, wanted[0] = whole_row(row, row->name);
            for (int k = 0; k < n; k++) {
                const struct wanted *w = &wanted[k];
                if (!last && bytes)
                    add_piece(p, w, scale_suffix, int8->scale + w->first, DT_F32, 1);
                else if (!last)
                    add_piece(p, w, "", weights + row->offset + w->first * width, format->type,
                              row->n_dims);
                else if (bytes)
                    add_piece(p, w, "", int8->data + w->first * width, DT_I8, row->n_dims);
            }
        }
    const struct dt_param *row = dt_params_find(params, embeddings);
    if (!format->official || !row)
        return;
    for (int i = 0; i < p->n; i++) {
        char text[SCALE_NAME];
        if (respell(p->list[i].name, spellings[0].ours, spellings[0].theirs, text))
            memcpy(p->list[i].name, text, sizeof text);
    }
    struct wanted head = whole_row(row, lm_head);
    if (!dt_params_find(params, lm_head)) // PyTorch's state dict has both names of a tied tensor
        add_piece(p, &head, "", weights + row->offset, format->type, row->n_dims);
}

static int64_t elements_of(const struct dt_safetensors_entry *entry)
{
    int64_t n = 1;
    for (int k = 0; k < entry->n_dims; k++)
        n *= entry->shape[k];
    return n;
}

static int64_t bytes_of(const struct dt_safetensors_entry *entry)
{
    return elements_of(entry) * dt_dtype_size(entry->dtype);
}

static dt_status write_piece(struct dt_safetensors_writer *writer, const struct piece *piece,
                             const struct dt_safetensors_entry *entry)
{
    enum { BLOCK = 4096 };
    dt_bf16 rounded[BLOCK];
    const float *from = piece->data;
    if (entry->dtype != DT_BF16)
        return dt_safetensors_write(writer, piece->data, bytes_of(entry));
    for (int64_t at = 0, n = elements_of(entry); at < n; at += BLOCK) {
        int64_t some = n - at < BLOCK ? n - at : BLOCK;
        for (int64_t i = 0; i < some; i++)
            rounded[i] = dt_f32_to_bf16(from[at + i]);
        DT_TRY(dt_safetensors_write(writer, rounded, some * (int64_t)sizeof *rounded));
    }
    return DT_OK;
}

// Writes pieces [from, end).
static dt_status write_file(const char *path, const struct pieces *p, int from, int end,
                            int64_t *size, uint64_t *hash)
{
    static const char *const metadata[] = {"format", "pt"};
    struct dt_safetensors_writer *writer = NULL;
    DT_TRY(dt_safetensors_create(path, p->entries + from, end - from, metadata, 1, &writer));
    for (int i = from; i < end; i++) {
        dt_status status = write_piece(writer, &p->list[i], &p->entries[i]);
        if (status != DT_OK) {
            dt_safetensors_discard(writer);
            return status;
        }
    }
    return dt_safetensors_finish(writer, size, hash);
}

static dt_status list_all(const char *path, const struct dt_params *params, const float *weights,
                          const struct dt_hf_format *format, struct pieces *p)
{
    int most = 2 * DT_PARAM_SLICES * params->n + 1;
    DT_TRY(DT_NEW(&p->entries, most, "the tensors of %s", path));
    DT_TRY(DT_NEW(&p->list, most, "the names of %s", path));
    list_pieces(params, weights, format, p);
    return DT_OK;
}

dt_status dt_hf_write_weights(const char *path, const struct dt_params *params,
                              const float *weights, int64_t *size, uint64_t *hash)
{
    static const struct dt_hf_format plain = {.type = DT_F32};
    struct pieces p = {0};
    dt_status status = list_all(path, params, weights, &plain, &p);
    if (status == DT_OK)
        status = write_file(path, &p, 0, p.n, size, hash);
    free(p.entries);
    free(p.list);
    return status;
}

// The end of a file that begins at piece `from`: at least one piece, at most `most` bytes.
static int end_of_file(const struct pieces *p, int from, int64_t most)
{
    int end = from + 1;
    for (int64_t bytes = bytes_of(&p->entries[from]); end < p->n; end++) {
        bytes += bytes_of(&p->entries[end]);
        if (most > 0 && bytes > most)
            break;
    }
    return end;
}

// Writes model-00001-of-00003.safetensors … and the index of tensors.
static dt_status write_files(const char *dir, const struct pieces *p, int64_t most, int files,
                             cJSON *map)
{
    char path[DT_PATH], name[64];
    for (int from = 0, end, k = 1; from < p->n; from = end, k++) {
        end = end_of_file(p, from, most);
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", k, files);
        DT_TRY(dt_path(path, "%s/%s", dir, name));
        DT_TRY(write_file(path, p, from, end, NULL, NULL));
        for (int i = from; i < end; i++)
            cJSON_AddStringToObject(map, p->list[i].name, name);
    }
    return DT_OK;
}

static dt_status write_indexed(const char *dir, const struct pieces *p, int64_t most, int files)
{
    char path[DT_PATH], *text;
    int64_t bytes = 0;
    for (int i = 0; i < p->n; i++)
        bytes += bytes_of(&p->entries[i]);
    cJSON *index = cJSON_CreateObject();
    dt_json_add_int(cJSON_AddObjectToObject(index, "metadata"), "total_size", bytes);
    dt_status status =
        write_files(dir, p, most, files, cJSON_AddObjectToObject(index, "weight_map"));
    text = status == DT_OK ? dt_json_text(index) : NULL;
    cJSON_Delete(index);
    DT_TRY(status);
    if (!text)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for the index of %s", dir);
    status = dt_path(path, "%s/" INDEX, dir);
    if (status == DT_OK)
        status = dt_write_synced(path, text, (int64_t)strlen(text));
    free(text);
    return status;
}

dt_status dt_hf_write(const char *dir, const struct dt_params *params, const float *weights,
                      const struct dt_hf_format *format)
{
    struct pieces p = {0};
    char path[DT_PATH];
    int files = 0;
    dt_status status;
    DT_TRY_GOTO(status, out, list_all(dir, params, weights, format, &p));
    for (int from = 0; from < p.n; from = end_of_file(&p, from, format->file_bytes))
        files++;
    DT_TRY_GOTO(status, out, dt_path(path, "%s/model.safetensors", dir));
    if (files > FILES_MAX)
        status = DT_FAIL(DT_USER, "choose larger files",
                         "%d files of at most %lld bytes; %d are the most", files,
                         (long long)format->file_bytes, FILES_MAX);
    else if (files > 1)
        status = write_indexed(dir, &p, format->file_bytes, files);
    else
        status = write_file(path, &p, 0, p.n, NULL, NULL);
out:
    free(p.entries);
    free(p.list);
    return status;
}
