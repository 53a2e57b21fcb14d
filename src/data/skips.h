// Lists the batches that a run leaves out (optim.rollback), as numbers of steps of the data's
// order, from 0.
#pragma once

#include "base/config.h"
#include "base/error.h"
#include "base/span.h"

enum { DT_SKIPS = 16, DT_SKIPS_TEXT = DT_CONFIG_STRING_MAX }; // ranges; bytes as text
#define DT_SKIPS_BATCH (INT64_C(1) << 53) // none is above it: steps can be added

// Ascending, apart from each other. Zeros: none.
struct dt_skips {
    int64_t n;
    struct dt_span ranges[DT_SKIPS];
};

// The batch that step `step` (from 0) trains: the step-th of those that are left.
int64_t dt_skips_batch(const struct dt_skips *skips, int64_t step);
// Leaves out batches [first, end) too; what they hold or touch is merged. DT_USER where there are
// DT_SKIPS ranges already.
dt_status dt_skips_add(struct dt_skips *skips, int64_t first, int64_t end);
// "12:15 40:41", as in trainer.json, and back: DT_USER where the text is something else.
void dt_skips_text(const struct dt_skips *skips, char text[DT_SKIPS_TEXT]);
dt_status dt_skips_parse(const char *text, struct dt_skips *skips);
