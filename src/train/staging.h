// The way of a batch into the device: a rank's share is copied on a stream of its own, beside the
// work on the batch before it, and handed out a micro-batch at a time, each time in the same
// memory.
#pragma once

#include "data/loader.h"
#include "model/model.h"

// A rank's share of a step, and of one pass over it; micro divides sequences.
struct dt_staging_config {
    int64_t sequences, length, micro;
};

// Arrays of one token: its id, its label, and whether a document starts at it.
struct dt_staged {
    int32_t *ids, *labels;
    uint8_t *reset;
};

struct dt_staging {
    const struct dt_backend *backend;
    struct dt_staging_config config;
    struct dt_staged arrived;    // [sequences, length], device memory
    struct dt_staged input;      // [micro, length], device memory
    float *arrived_lr, *host_lr; // one each; the latter pinned
    bool has_reset;              // the batch at hand came with document starts
    struct dt_stream *copies;
    struct dt_event *there; // the batch has arrived, its host memory is free
    struct dt_event *taken; // its last micro-batch was taken, `arrived` is free
};

int64_t dt_staging_bytes(const struct dt_staging_config *config); // of device memory
dt_status dt_staging_create(const struct dt_backend *backend,
                            const struct dt_staging_config *config, struct dt_staging *staging);
void dt_staging_destroy(struct dt_staging *staging);
// Waits until the host memory of the last batch was read: before the loader is asked for the next.
dt_status dt_staging_settle(struct dt_staging *staging);
// Sends the arrays that a language model reads ("input_ids", "labels", "reset") and the step's
// learning rate on their way, and lets `stream` wait for them.
dt_status dt_staging_load(struct dt_staging *staging, const struct dt_batch *batch, double lr,
                          struct dt_stream *stream);
int64_t dt_staging_micro_batches(const struct dt_staging *staging);
// The batch's learning rate into `lr` (device memory).
dt_status dt_staging_take_lr(struct dt_staging *staging, float *lr, struct dt_stream *stream);
// Micro-batch `index` of the batch, in order: its arrays are valid on `stream` until the next is
// taken.
dt_status dt_staging_take(struct dt_staging *staging, int64_t index, struct dt_stream *stream,
                          struct dt_model_input *input);
