// Reads /doc_starts. A window's starts are searched in the file, since a shard may have millions of
// them.
#include "data/h5_starts.h"

#include "base/round.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

enum { AT_ONCE = 1024 };

static const char damaged[] =
    "the shard is damaged: copy it again from its source, or pack it again";

dt_status dt_h5_starts_open(const struct dt_h5_file *file, const struct dt_h5_array *tokens,
                            struct dt_h5_starts *starts)
{
    uint64_t count = 0;
    bool has_hash;
    *starts = (struct dt_h5_starts){.n_tokens = tokens->shape[0]};
    DT_TRY(dt_h5_array_open(file, "/doc_starts", &starts->array, &starts->found));
    if (starts->found) {
        DT_TRY(dt_h5_check_vector(&starts->array));
        if (starts->array.type != DT_U64)
            return DT_H5_REJECT(&starts->array,
                                "store offsets into /tokens as little-endian uint64", "holds %s",
                                starts->array.type_text);
    }
    DT_TRY(dt_h5_attribute_u64(tokens, DT_STARTS_COUNT, &count, &starts->stamped));
    DT_TRY(dt_h5_attribute_u64(tokens, DT_STARTS_HASH, &starts->hash, &has_hash));
    if (starts->stamped != has_hash)
        return DT_FAIL(DT_USER, damaged, "%s: /tokens has the attribute %s without %s",
                       tokens->file->path, has_hash ? DT_STARTS_HASH : DT_STARTS_COUNT,
                       has_hash ? DT_STARTS_COUNT : DT_STARTS_HASH);
    if (!starts->stamped)
        return DT_OK;
    if (!starts->found)
        return DT_FAIL(DT_USER, damaged,
                       "%s: /doc_starts is missing; %s of /tokens says that it has %" PRIu64
                       " entries",
                       tokens->file->path, DT_STARTS_COUNT, count);
    if ((uint64_t)starts->array.shape[0] != count)
        return DT_FAIL(DT_USER, damaged,
                       "%s: /doc_starts has %" PRId64 " entries; %s of /tokens says %" PRIu64,
                       tokens->file->path, starts->array.shape[0], DT_STARTS_COUNT, count);
    return DT_OK;
}

// What to do with each entry of a walk.
struct walk {
    int64_t last;       // the previous entry
    int64_t first, end; // entries in [first, end) are marked; the walk ends at `end`
    uint8_t *marks;     // NULL: none
    XXH3_state_t *hash; // NULL: none
};

static dt_status walk_from(const struct dt_h5_starts *starts, int64_t index, struct walk *walk)
{
    const struct dt_h5_array *array = &starts->array;
    uint64_t values[AT_ONCE];
    for (int64_t n; index < array->shape[0]; index += n) {
        n = array->shape[0] - index < AT_ONCE ? array->shape[0] - index : AT_ONCE;
        DT_TRY(dt_h5_array_read(array, index, n, values));
        if (walk->hash)
            XXH3_64bits_update(walk->hash, values, (size_t)n * sizeof *values);
        for (int64_t i = 0; i < n; i++) {
            if (values[i] >= (uint64_t)starts->n_tokens || (int64_t)values[i] <= walk->last)
                return DT_FAIL(DT_USER,
                               "store ascending offsets into /tokens, each below its length",
                               "%s: /doc_starts[%" PRId64 "] is %" PRIu64
                               ", not above the one before it or not below %" PRId64,
                               array->file->path, index + i, values[i], starts->n_tokens);
            walk->last = (int64_t)values[i];
            if (walk->last >= walk->end)
                return DT_OK;
            if (walk->marks)
                walk->marks[walk->last - walk->first] = 1;
        }
    }
    return DT_OK;
}

// Finds the first entry >= `first`, or the end. Documents have similar lengths throughout a shard,
// so a probe interpolates as if all were equally long, and also reads the neighbours. Every second
// probe bisects.
static dt_status find(const struct dt_h5_starts *starts, int64_t first, int64_t *index)
{
    int64_t low = 0, high = starts->array.shape[0]; // it is in [low, high]
    double below = 0, above = (double)starts->n_tokens;
    uint64_t values[AT_ONCE];
    for (bool halve = false; low < high; halve = !halve) {
        double share = ((double)first - below) / (above - below);
        if (halve || !(share >= 0 && share <= 1)) // otherwise the entries do not ascend
            share = 0.5;
        int64_t at = low + (int64_t)(share * (double)(high - low)) - AT_ONCE / 2, i = 0;
        at = dt_max_i64(low, dt_min_i64(at, high - AT_ONCE));
        int64_t n = dt_min_i64(AT_ONCE, high - at);
        DT_TRY(dt_h5_array_read(&starts->array, at, n, values));
        while (i < n && values[i] < (uint64_t)first)
            i++;
        if (i < n) {
            high = at + i;
            above = (double)values[i];
        }
        if (i > 0) {
            low = at + i;
            below = (double)values[i - 1];
        }
    }
    *index = low;
    return DT_OK;
}

dt_status dt_h5_starts_mark(const struct dt_h5_starts *starts, int64_t first, int64_t count,
                            uint8_t *marks)
{
    struct walk walk = {.last = first - 1, .first = first, .end = first + count, .marks = marks};
    int64_t index;
    memset(marks, 0, (size_t)count);
    DT_TRY(find(starts, first, &index));
    return walk_from(starts, index, &walk);
}

dt_status dt_h5_starts_lengths(const struct dt_h5_starts *starts, int64_t first, int64_t count,
                               int64_t *lengths)
{
    int64_t index = 0, start = 0, n, at = first, last = first + count;
    uint64_t ends[AT_ONCE];
    DT_TRY(find(starts, first + 1, &index)); // the first one after `first`
    if (index > 0)
        DT_TRY(dt_h5_array_read(&starts->array, index - 1, 1, &start));
    for (; at < last; index += n) {
        n = dt_min_i64(starts->array.shape[0] - index, AT_ONCE);
        if (n > 0)
            DT_TRY(dt_h5_array_read(&starts->array, index, n, ends));
        else
            n = 1, ends[0] = (uint64_t)starts->n_tokens;
        for (int64_t i = 0; i < n && at < last; i++) {
            int64_t end = (int64_t)ends[i];
            if (start < 0 || start > at || end <= at || end > starts->n_tokens) // the file changed
                return DT_FAIL(DT_USER, damaged, "%s: /doc_starts does not ascend within /tokens",
                               starts->array.file->path);
            for (; at < end && at < last; at++)
                lengths[at - first] = end - start;
            start = end;
        }
    }
    return DT_OK;
}

dt_status dt_h5_starts_check(const struct dt_h5_starts *starts, bool hash)
{
    struct walk walk = {.last = -1, .end = INT64_MAX};
    if (!hash || !starts->stamped)
        return walk_from(starts, 0, &walk);
    walk.hash = XXH3_createState();
    if (!walk.hash)
        return DT_FAIL(DT_MACHINE, NULL, "no memory to hash /doc_starts");
    XXH3_64bits_reset(walk.hash);
    dt_status status = walk_from(starts, 0, &walk);
    uint64_t found = XXH3_64bits_digest(walk.hash);
    XXH3_freeState(walk.hash);
    DT_TRY(status);
    if (found != starts->hash)
        return DT_FAIL(DT_USER, damaged,
                       "%s: checksum mismatch in /doc_starts: stored %016" PRIx64
                       " (%s of /tokens), found %016" PRIx64,
                       starts->array.file->path, starts->hash, DT_STARTS_HASH, found);
    return DT_OK;
}
