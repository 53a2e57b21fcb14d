// Writes and reads tensors by range.
#include "checkpoint/ranges.h"

#include "base/list.h"
#include "base/memory.h"
#include "base/problems.h"
#include "base/round.h"

#include <stdio.h>
#include <string.h>

enum { ENTRY_NAME = DT_RANGED_NAME + 64, WIDEST = 8 /* bytes of an element */ };

static void entry_name(char name[ENTRY_NAME], const struct dt_ranges *ranges,
                       const struct dt_range *range)
{
    snprintf(name, ENTRY_NAME, "%s[%lld:%lld]", ranges->tensors[range->tensor].name,
             (long long)range->first, (long long)range->last);
}

dt_status dt_ranges_add(struct dt_ranges *ranges, struct dt_range range)
{
    DT_TRY(dt_list_grow(&ranges->list, ranges->n_ranges, sizeof range));
    ranges->list[ranges->n_ranges++] = range;
    return DT_OK;
}

// Larger element types are written first, so that every entry's data are aligned.
dt_status dt_ranges_write(const struct dt_ranges *ranges, const char *path,
                          const char *const *metadata, int n_metadata,
                          struct dt_manifest_file *file)
{
    int64_t n = ranges->n_ranges, k = 0;
    struct dt_safetensors_writer *writer = NULL;
    struct dt_safetensors_entry *entries = NULL;
    const struct dt_range **order = NULL;
    char(*names)[ENTRY_NAME] = NULL;
    dt_status status;
    DT_TRY_GOTO(status, out, DT_NEW(&entries, n, "the entries of %s", path));
    DT_TRY_GOTO(status, out, DT_NEW(&order, n, "the order of %s", path));
    DT_TRY_GOTO(status, out, DT_NEW(&names, n, "the names of %s", path));
    for (int64_t size = WIDEST; size > 0; size /= 2)
        for (const struct dt_range *r = ranges->list; r < ranges->list + n; r++) {
            const struct dt_ranged_tensor *tensor = &ranges->tensors[r->tensor];
            if (dt_dtype_size(tensor->type) != size)
                continue;
            entry_name(names[k], ranges, r);
            entries[k] =
                (struct dt_safetensors_entry){.name = names[k],
                                              .dtype = tensor->type,
                                              .n_dims = tensor->width ? 2 : 1,
                                              .shape = {r->last - r->first, tensor->width}};
            order[k++] = r;
        }
    DT_TRY_GOTO(status, out,
                dt_safetensors_create(path, entries, (int)n, metadata, n_metadata, &writer));
    for (int64_t i = 0; i < n; i++) {
        const struct dt_ranged_tensor *tensor = &ranges->tensors[order[i]->tensor];
        int64_t elements = (order[i]->last - order[i]->first) * dt_max_i64(tensor->width, 1);
        DT_TRY_GOTO(
            status, out,
            dt_safetensors_write(writer, order[i]->data, elements * dt_dtype_size(tensor->type)));
    }
    status = dt_safetensors_finish(writer, &file->size, &file->hash);
    writer = NULL;
out:
    dt_safetensors_discard(writer);
    free(names);
    free(order);
    free(entries);
    return status;
}

// Rejects a name that is not identical when printed again. Entries mostly follow the order of the
// tensors, so the search begins at the previous entry's tensor.
static bool parse_name(const struct dt_ranges *ranges, const char *name, struct dt_range *range)
{
    char again[ENTRY_NAME], *end;
    const char *bracket = strrchr(name, '[');
    if (!bracket)
        return false;
    size_t length = (size_t)(bracket - name);
    int start = ranges->n_ranges > 0 ? ranges->list[ranges->n_ranges - 1].tensor : 0;
    range->first = strtoll(bracket + 1, &end, 10);
    range->last = *end == ':' ? strtoll(end + 1, NULL, 10) : 0;
    for (int i = 0; i < ranges->n; i++) {
        range->tensor = (start + i) % ranges->n;
        const char *tensor = ranges->tensors[range->tensor].name;
        if (strncmp(tensor, name, length) == 0 && !tensor[length]) {
            entry_name(again, ranges, range);
            return strcmp(name, again) == 0 && range->first >= 0 && range->first < range->last;
        }
    }
    return false;
}

static bool is_float(enum dt_dtype type)
{
    return type == DT_F32 || type == DT_BF16;
}

dt_status dt_ranges_read(struct dt_ranges *ranges, const struct dt_safetensors *file,
                         const struct dt_safetensor *entry, struct dt_range *range)
{
    const char *hint = "the checkpoint was written by another program, or for another model";
    *range = (struct dt_range){0};
    if (!parse_name(ranges, entry->name, range))
        return DT_FAIL(DT_USER, hint, "%s: %.200s is not a range of this model's %s", file->path,
                       entry->name, ranges->what);
    const struct dt_ranged_tensor *tensor = &ranges->tensors[range->tensor];
    int64_t n = range->last - range->first;
    bool same = entry->dtype == tensor->type ||
                (ranges->widens && is_float(entry->dtype) && is_float(tensor->type));
    if (!same || entry->n_dims != (tensor->width ? 2 : 1) || entry->shape[0] != n ||
        (tensor->width && entry->shape[1] != tensor->width)) {
        char shape[64];
        snprintf(shape, sizeof shape, tensor->width ? "[%lld, %lld]" : "[%lld]", (long long)n,
                 (long long)tensor->width);
        return DT_FAIL(DT_USER, hint, "%s: %.200s must be %s of shape %s", file->path, entry->name,
                       dt_dtype_name(tensor->type), shape);
    }
    if (range->last > tensor->items)
        return DT_FAIL(DT_USER, hint, "%s: %.200s ends after the tensor's %lld %ss", file->path,
                       entry->name, (long long)tensor->items, ranges->item);
    return dt_ranges_add(ranges, *range);
}

static int compare_ranges(const void *a, const void *b)
{
    const struct dt_range *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

// The sorted ranges of each tensor must be contiguous.
dt_status dt_ranges_check(struct dt_ranges *ranges, const char *where)
{
    struct dt_problems problems = {0};
    const struct dt_range *next = ranges->list, *past = ranges->list + ranges->n_ranges;
    if (ranges->n_ranges > 0)
        qsort(ranges->list, (size_t)ranges->n_ranges, sizeof *ranges->list, compare_ranges);
    for (int i = 0; i < ranges->n; i++) {
        const struct dt_ranged_tensor *tensor = &ranges->tensors[i];
        int64_t held = 0, twice = -1; // items [0, held) exist; a duplicate item
        bool any = false;
        for (; next < past && next->tensor == i; next++) {
            any = true;
            if (next->first < held && twice < 0)
                twice = next->first;
            if (next->first <= held)
                held = dt_max_i64(held, next->last);
        }
        if (!any && tensor->optional)
            continue;
        if (!any && tensor->items > 0)
            dt_problems_add(&problems, "%s is missing", tensor->name);
        else if (twice >= 0)
            dt_problems_add(&problems, "duplicate %s %lld of %s", ranges->item, (long long)twice,
                            tensor->name);
        else if (held < tensor->items)
            dt_problems_add(&problems, "%s %lld of %s is missing", ranges->item, (long long)held,
                            tensor->name);
    }
    return dt_problems_report(&problems, ranges->hint, "the %s of %s are incomplete", ranges->what,
                              where);
}

void dt_ranges_free(struct dt_ranges *ranges)
{
    free(ranges->tensors);
    free(ranges->list);
    *ranges = (struct dt_ranges){0};
}
