// The batches that a run leaves out (optim.rollback), as steps of the data order, from 0.
#pragma once

#include "base/config.h"
#include "base/error.h"
#include "base/span.h"

enum { DT_SKIPS = 16, DT_SKIPS_TEXT = DT_CONFIG_STRING_MAX }; // ranges; bytes as text
#define DT_SKIPS_BATCH (INT64_C(1) << 53) // upper limit, so that steps can be added

// Ascending and disjoint. Zeros: none.
struct dt_skips {
    int64_t n;
    struct dt_span ranges[DT_SKIPS];
};

// The batch that step `step` (from 0) trains: the step-th batch that is not left out.
int64_t dt_skips_batch(const struct dt_skips *skips, int64_t step);
// Also leaves out batches [first, end); overlapping and adjacent ranges are merged. DT_USER if
// there are DT_SKIPS ranges already.
dt_status dt_skips_add(struct dt_skips *skips, int64_t first, int64_t end);
// Formats and parses "12:15 40:41", as in trainer.json. DT_USER if the text is invalid.
void dt_skips_text(const struct dt_skips *skips, char text[DT_SKIPS_TEXT]);
dt_status dt_skips_parse(const char *text, struct dt_skips *skips);
