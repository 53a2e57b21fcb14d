// The file of carried states: written in the blocks of training, read from any ranges.
#include "checkpoint/slot_states.h"

#include "base/file.h"
#include "base/problems.h"
#include "base/round.h"
#include "base/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { ENTRY_NAME = sizeof((struct dt_slot_array *)0)->name + 48 };

static const char other_model[] =
    "the checkpoint was written by another program, or for another model";

static int64_t row_bytes(const struct dt_slot_array *array)
{
    return array->width * dt_dtype_size(array->type);
}

static char *row_at(const struct dt_slot_states *states, const struct dt_slot_array *array,
                    int64_t slot)
{
    return states->blocks + slot / states->each * states->block_bytes + array->offset +
           slot % states->each * row_bytes(array);
}

static void entry_name(char name[ENTRY_NAME], const struct dt_slot_array *array, int64_t first,
                       int64_t last)
{
    snprintf(name, ENTRY_NAME, "%s[%lld:%lld]", array->name, (long long)first, (long long)last);
}

// Writing: larger elements first, so that the data of every entry are aligned.

struct entry {
    const struct dt_slot_array *array;
    int64_t first; // slot
    char name[ENTRY_NAME];
};

static int larger_first(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int64_t sizes = dt_dtype_size(y->array->type) - dt_dtype_size(x->array->type);
    if (sizes != 0)
        return sizes > 0 ? 1 : -1;
    if (x->array != y->array)
        return x->array < y->array ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static dt_status write_entries(const char *path, const struct dt_slot_states *states,
                               struct entry *entries, struct dt_safetensors_entry *announced, int n,
                               struct dt_manifest_file *file)
{
    struct dt_safetensors_writer *writer;
    dt_status status;
    for (int i = 0; i < n; i++) {
        entries[i].array = &states->arrays[i % states->n];
        entries[i].first = i / states->n * states->each;
    }
    qsort(entries, (size_t)n, sizeof *entries, larger_first);
    for (int i = 0; i < n; i++) {
        struct entry *e = &entries[i];
        entry_name(e->name, e->array, e->first, e->first + states->each);
        announced[i] = (struct dt_safetensors_entry){.name = e->name,
                                                     .dtype = e->array->type,
                                                     .n_dims = 2,
                                                     .shape = {states->each, e->array->width}};
    }
    DT_TRY(dt_safetensors_create(path, announced, n, NULL, 0, &writer));
    for (int i = 0; i < n; i++)
        DT_TRY_GOTO(status, discard,
                    dt_safetensors_write(writer, row_at(states, entries[i].array, entries[i].first),
                                         states->each * row_bytes(entries[i].array)));
    return dt_safetensors_finish(writer, &file->size, &file->hash);
discard:
    dt_safetensors_discard(writer);
    return status;
}

dt_status dt_slot_states_write(struct dt_manifest *manifest, const char *folder,
                               const struct dt_slot_states *states)
{
    char path[DT_PATH];
    struct dt_manifest_file file;
    int n = (int)(states->slots / states->each) * states->n;
    DT_TRY(dt_path(path, "%s/%s", folder, DT_SLOT_STATES_FILE));
    struct entry *entries = calloc((size_t)n + 1, sizeof *entries);
    struct dt_safetensors_entry *announced = calloc((size_t)n + 1, sizeof *announced);
    dt_status status =
        entries && announced
            ? write_entries(path, states, entries, announced, n, &file)
            : DT_FAIL(DT_MACHINE, NULL, "no memory for the names of %d carried states", n);
    free(entries);
    free(announced);
    DT_TRY(status);
    return dt_manifest_add(manifest, DT_SLOT_STATES_FILE, file.size, file.hash);
}

// Reading.

// The array and the range that a name says; a name that does not come out the same again is none of
// dtrain's.
static const struct dt_slot_array *parse_name(const struct dt_slot_states *states, const char *name,
                                              int64_t *first, int64_t *last)
{
    char again[ENTRY_NAME], *end;
    size_t length = strcspn(name, "[");
    if (!name[length])
        return NULL;
    *first = strtoll(name + length + 1, &end, 10);
    *last = *end == ':' ? strtoll(end + 1, NULL, 10) : 0;
    for (const struct dt_slot_array *a = states->arrays; a < states->arrays + states->n; a++) {
        entry_name(again, a, *first, *last);
        if (strcmp(again, name) == 0)
            return *first >= 0 && *first < *last && *last <= states->slots ? a : NULL;
    }
    return NULL;
}

static bool is_float(enum dt_dtype type)
{
    return type == DT_F32 || type == DT_BF16;
}

// Counts are places in memory, unlike other numbers.
static dt_status check_counts(const struct dt_safetensors *file, const struct dt_safetensor *entry,
                              const struct dt_slot_array *array, int64_t row, const char *at)
{
    for (int64_t i = 0; array->type == DT_I32 && i < array->width; i++) {
        int32_t value;
        memcpy(&value, at + i * (int64_t)sizeof value, sizeof value);
        if (value < 0 || value > array->last)
            return DT_FAIL(DT_USER, other_model, "%s: %.100s: row %lld has %d, not in 0 … %d",
                           file->path, entry->name, (long long)row, value, array->last);
    }
    return DT_OK;
}

// One slot's row.
static dt_status read_row(const struct dt_safetensors *file, const struct dt_safetensor *entry,
                          const struct dt_slot_array *array, int64_t row, float *widened, char *to)
{
    int64_t first = row * array->width;
    if (entry->dtype == array->type) {
        DT_TRY(dt_safetensors_read(file, entry, first, array->width, to));
        return check_counts(file, entry, array, row, to);
    }
    DT_TRY(dt_safetensors_read_f32(file, entry, first, array->width, widened));
    for (int64_t i = 0; i < array->width; i++)
        if (array->type == DT_BF16)
            ((dt_bf16 *)(void *)to)[i] = dt_f32_to_bf16(widened[i]);
        else
            ((float *)(void *)to)[i] = widened[i];
    return DT_OK;
}

// `seen` has a flag for each slot of each array.
static dt_status read_entry(const struct dt_safetensors *file, const struct dt_safetensor *entry,
                            const struct dt_slot_states *states, float *widened, bool *seen)
{
    int64_t first, last;
    const struct dt_slot_array *array = parse_name(states, entry->name, &first, &last);
    if (!array)
        return DT_FAIL(DT_USER, other_model,
                       "%s: %.100s is not a carried state of this model (%lld "
                       "slots)",
                       file->path, entry->name, (long long)states->slots);
    if ((entry->dtype != array->type && !(is_float(entry->dtype) && is_float(array->type))) ||
        entry->n_dims != 2 || entry->shape[0] != last - first || entry->shape[1] != array->width)
        return DT_FAIL(DT_USER, other_model, "%s: %.100s must be %s of shape [%lld, %lld]",
                       file->path, entry->name, dt_dtype_name(array->type),
                       (long long)(last - first), (long long)array->width);
    bool *done = seen + (array - states->arrays) * states->slots;
    for (int64_t slot = first; slot < last; slot++) {
        if (done[slot])
            return DT_FAIL(DT_USER, other_model, "%s: duplicate slot %lld of %s", file->path,
                           (long long)slot, array->name);
        done[slot] = true;
        DT_TRY(read_row(file, entry, array, slot - first, widened, row_at(states, array, slot)));
    }
    return DT_OK;
}

static dt_status read_entries(const struct dt_safetensors *file,
                              const struct dt_slot_states *states, float *widened, bool *seen)
{
    for (int i = 0; i < file->n_tensors; i++)
        DT_TRY(read_entry(file, &file->tensors[i], states, widened, seen));
    for (int64_t i = 0; i < states->n * states->slots; i++)
        if (!seen[i])
            return DT_FAIL(DT_USER, "use another checkpoint", "%s lacks slot %lld of %s",
                           file->path, (long long)(i % states->slots),
                           states->arrays[i / states->slots].name);
    return DT_OK;
}

dt_status dt_slot_states_read(const struct dt_manifest *manifest, const char *folder,
                              const struct dt_slot_states *states)
{
    char path[DT_PATH];
    struct dt_safetensors *file;
    int64_t widest = 1;
    DT_TRY(dt_path(path, "%s/%s", folder, DT_SLOT_STATES_FILE));
    if (!dt_manifest_find(manifest, DT_SLOT_STATES_FILE))
        return DT_FAIL(DT_USER, "use another checkpoint", "MANIFEST lacks %s", path);
    for (int i = 0; i < states->n; i++)
        widest = dt_max_i64(widest, states->arrays[i].width);
    DT_TRY(dt_safetensors_open(path, &file));
    bool *seen = calloc((size_t)(states->n * states->slots), sizeof *seen);
    float *widened = malloc((size_t)widest * sizeof *widened);
    dt_status status = seen && widened ? read_entries(file, states, widened, seen)
                                       : DT_FAIL(DT_MACHINE, NULL, "no memory to read %s", path);
    free(seen);
    free(widened);
    dt_safetensors_close(file);
    return status;
}
