// Adds and merges the ranges of batches that a run leaves out, and converts them to text and back.
#include "data/skips.h"

#include "base/round.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t dt_skips_batch(const struct dt_skips *skips, int64_t step)
{
    int64_t batch = step;
    for (int64_t i = 0; i < skips->n && batch >= skips->ranges[i].first; i++)
        batch += skips->ranges[i].end - skips->ranges[i].first;
    return batch;
}

dt_status dt_skips_add(struct dt_skips *skips, int64_t first, int64_t end)
{
    struct dt_span list[DT_SKIPS + 1], added = {first, end};
    int64_t n = 0, at = 0;
    for (int64_t i = 0; i < skips->n; i++) {
        struct dt_span range = skips->ranges[i];
        if (range.end < added.first) { // before the added range
            list[n++] = range;
            at = n;
        } else if (range.first > added.end) { // after the added range
            list[n++] = range;
        } else {
            added.first = dt_min_i64(range.first, added.first);
            added.end = dt_max_i64(range.end, added.end);
        }
    }
    if (n == DT_SKIPS)
        return DT_FAIL(DT_USER, "lower optim.lr, or check the data of these batches",
                       "batches are already skipped in %d places", DT_SKIPS);
    memmove(list + at + 1, list + at, (size_t)(n - at) * sizeof *list);
    list[at] = added;
    *skips = (struct dt_skips){.n = n + 1};
    memcpy(skips->ranges, list, (size_t)(n + 1) * sizeof *list);
    return DT_OK;
}

void dt_skips_text(const struct dt_skips *skips, char text[DT_SKIPS_TEXT])
{
    text[0] = '\0';
    for (int64_t i = 0; i < skips->n; i++)
        dt_append(text, DT_SKIPS_TEXT, "%s%" PRId64 ":%" PRId64, i ? " " : "",
                  skips->ranges[i].first, skips->ranges[i].end);
}

dt_status dt_skips_parse(const char *text, struct dt_skips *skips)
{
    *skips = (struct dt_skips){0};
    for (const char *at = text; *at;) {
        char *colon, *stop;
        int64_t first = strtoll(at, &colon, 10);
        int64_t end = *colon == ':' ? strtoll(colon + 1, &stop, 10) : -1;
        int64_t least = skips->n ? skips->ranges[skips->n - 1].end : -1;
        if (first <= least || end <= first || end > DT_SKIPS_BATCH || (*stop && *stop != ' ') ||
            skips->n == DT_SKIPS)
            return DT_FAIL(DT_USER, NULL, "'%s' is not a list of batches such as '12:15 40:41'",
                           text);
        skips->ranges[skips->n++] = (struct dt_span){first, end};
        at = *stop ? stop + 1 : stop;
    }
    return DT_OK;
}
