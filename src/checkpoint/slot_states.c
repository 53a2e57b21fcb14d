// The file of carried states, written in training's blocks and read from any ranges.
#include "checkpoint/slot_states.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/round.h"
#include "checkpoint/ranges.h"

#include <string.h>

static char *row_at(const struct dt_slot_states *states, const struct dt_slot_array *array,
                    int64_t slot)
{
    return states->blocks + slot / states->each * states->block_bytes + array->offset +
           slot % states->each * array->width * dt_dtype_size(array->type);
}

static dt_status open_ranges(const struct dt_slot_states *states, struct dt_ranges *ranges)
{
    *ranges = (struct dt_ranges){.what = "carried states",
                                 .item = "slot",
                                 .hint = "use another checkpoint",
                                 .widens = true,
                                 .n = states->n};
    DT_TRY(DT_NEW(&ranges->tensors, states->n, "the names of carried states"));
    for (int i = 0; i < states->n; i++) {
        const struct dt_slot_array *array = &states->arrays[i];
        struct dt_ranged_tensor *tensor = &ranges->tensors[i];
        *tensor = (struct dt_ranged_tensor){
            .type = array->type, .items = states->slots, .width = array->width};
        snprintf(tensor->name, sizeof tensor->name, "%s", array->name);
    }
    return DT_OK;
}

dt_status dt_slot_states_write(struct dt_manifest *manifest, const char *folder,
                               const struct dt_slot_states *states)
{
    char path[DT_PATH];
    struct dt_manifest_file file;
    struct dt_ranges ranges;
    DT_TRY(dt_path(path, "%s/%s", folder, DT_SLOT_STATES_FILE));
    dt_status status = open_ranges(states, &ranges);
    for (int i = 0; i < states->n; i++)
        for (int64_t slot = 0; slot < states->slots && status == DT_OK; slot += states->each)
            status =
                dt_ranges_add(&ranges, (struct dt_range){i, slot, slot + states->each,
                                                         row_at(states, &states->arrays[i], slot)});
    if (status == DT_OK)
        status = dt_ranges_write(&ranges, path, NULL, 0, &file);
    dt_ranges_free(&ranges);
    DT_TRY(status);
    return dt_manifest_add(manifest, DT_SLOT_STATES_FILE, file.size, file.hash);
}

// Reads row `row` of an entry into one slot.
static dt_status read_row(const struct dt_safetensors *file, const struct dt_safetensor *entry,
                          const struct dt_slot_array *array, int64_t row, float *widened, char *to)
{
    int64_t first = row * array->width;
    if (entry->dtype == array->type) {
        DT_TRY(dt_safetensors_read(file, entry, first, array->width, to));
        for (int64_t i = 0; array->type == DT_I32 && i < array->width; i++) {
            int32_t value; // an index into memory, unlike other numbers
            memcpy(&value, to + i * (int64_t)sizeof value, sizeof value);
            if (value < 0 || value > array->last)
                return DT_FAIL(
                    DT_USER, "the checkpoint was written by another program, or for another model",
                    "%s: %.100s: row %lld has %d, not in 0 … %d", file->path, entry->name,
                    (long long)row, value, array->last);
        }
        return DT_OK;
    }
    DT_TRY(dt_safetensors_read_f32(file, entry, first, array->width, widened));
    for (int64_t i = 0; i < array->width; i++)
        if (array->type == DT_BF16)
            ((dt_bf16 *)(void *)to)[i] = dt_f32_to_bf16(widened[i]);
        else
            ((float *)(void *)to)[i] = widened[i];
    return DT_OK;
}

dt_status dt_slot_states_read(const struct dt_manifest *manifest, const char *folder,
                              const struct dt_slot_states *states)
{
    char path[DT_PATH];
    struct dt_safetensors *file = NULL;
    struct dt_ranges ranges;
    float *widened = NULL;
    int64_t widest = 0;
    dt_status status;
    DT_TRY(dt_path(path, "%s/%s", folder, DT_SLOT_STATES_FILE));
    if (!dt_manifest_find(manifest, DT_SLOT_STATES_FILE))
        return DT_FAIL(DT_USER, "use another checkpoint", "MANIFEST lacks %s", path);
    for (int i = 0; i < states->n; i++)
        widest = dt_max_i64(widest, states->arrays[i].width);
    DT_TRY_GOTO(status, out, open_ranges(states, &ranges));
    DT_TRY_GOTO(status, out, DT_NEW(&widened, widest, "a row of %s", path));
    DT_TRY_GOTO(status, out, dt_safetensors_open(path, &file));
    for (int i = 0; i < file->n_tensors; i++) {
        struct dt_range range;
        DT_TRY_GOTO(status, out, dt_ranges_read(&ranges, file, &file->tensors[i], &range));
        const struct dt_slot_array *array = &states->arrays[range.tensor];
        for (int64_t slot = range.first; slot < range.last; slot++)
            DT_TRY_GOTO(status, out,
                        read_row(file, &file->tensors[i], array, slot - range.first, widened,
                                 row_at(states, array, slot)));
    }
    status = dt_ranges_check(&ranges, path);
out:
    dt_safetensors_close(file);
    free(widened);
    dt_ranges_free(&ranges);
    return status;
}
