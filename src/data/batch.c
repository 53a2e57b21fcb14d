// Finds arrays in lists and batches by name, and compares what a reader yields with what a model
// reads.
#include "data/batch.h"

#include <inttypes.h>
#include <string.h>

int dt_array_list_find(const struct dt_array_list *list, const char *name)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->arrays[i].name, name) == 0)
            return i;
    return -1;
}

int dt_array_list_add(struct dt_array_list *list, const char *name, enum dt_dtype type,
                      int64_t width, bool optional)
{
    int i = dt_array_list_find(list, name);
    if (i < 0 && list->n < DT_BATCH_ARRAYS) {
        list->arrays[list->n] = (struct dt_array_spec){
            .name = name, .type = type, .width = width, .optional = optional};
        return list->n++;
    }
    if (i < 0) {
        DT_FAIL(DT_USER, NULL, "array %s: at most %d arrays are allowed", name, DT_BATCH_ARRAYS);
        return -1;
    }
    struct dt_array_spec *known = &list->arrays[i];
    if (known->type != type || known->width != width) {
        DT_FAIL(DT_USER, NULL,
                "array %s is read as %s of width %" PRId64 " and as %s of width %" PRId64, name,
                dt_dtype_name(known->type), known->width, dt_dtype_name(type), width);
        return -1;
    }
    known->optional = known->optional && optional;
    return i;
}

const struct dt_array_spec *dt_array_list_missing(const struct dt_array_list *yields,
                                                  const struct dt_array_list *reads)
{
    for (int i = 0; i < reads->n; i++) {
        const struct dt_array_spec *want = &reads->arrays[i];
        int k = dt_array_list_find(yields, want->name);
        if (k < 0 ? !want->optional
                  : yields->arrays[k].type != want->type || yields->arrays[k].width != want->width)
            return want;
    }
    return NULL;
}

const struct dt_array *dt_batch_find(const struct dt_batch *batch, const char *name)
{
    for (int i = 0; i < batch->n_arrays; i++)
        if (strcmp(batch->arrays[i].spec.name, name) == 0)
            return &batch->arrays[i];
    return NULL;
}
