// Device memory for one rank's share of a batch, and its micro-batches as model inputs.
#pragma once

#include "train/job.h"

struct dt_staging {
    const struct dt_backend *backend;
    int64_t sequences, length, micro; // of a rank's share
    int32_t *ids, *labels;            // [sequences, length], device memory
    uint8_t *reset;                   // likewise
    bool has_reset;                   // the batch at hand came with document starts
};

int64_t dt_staging_bytes(const struct dt_job *job);
dt_status dt_staging_create(const struct dt_job *job, struct dt_staging *staging);
void dt_staging_destroy(struct dt_staging *staging);
// Copies the arrays that a language model reads ("input_ids", "labels", "reset") to the device.
dt_status dt_staging_load(struct dt_staging *staging, const struct dt_batch *batch,
                          struct dt_stream *stream);
int64_t dt_staging_micro_batches(const struct dt_staging *staging);
struct dt_model_input dt_staging_micro_batch(const struct dt_staging *staging, int64_t index);
