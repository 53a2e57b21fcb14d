// The input of a model: a loader's batches, copied to the device on a separate stream while the
// previous batch is processed, and handed out one micro-batch at a time.
//
// Who may touch a batch when: the loader's thread fills the host batch, and dt_loader_next returns
// it. Then only the copy stream reads it, until the event `copied`. dt_input_next waits for that
// event before it requests the next batch, which returns the memory to the loader's thread. A step
// reads only device memory: its stream waits for `copied`, then copies each micro-batch from
// `batch` to `micro`, whose address is fixed for captured graphs. The event `used` after the last
// micro-batch lets the copy stream overwrite `batch`.
#pragma once

#include "data/loader.h"
#include "model/model.h"

// A rank's sequences per step and per pass; micro divides sequences.
struct dt_input_config {
    int64_t sequences, length, micro;
    bool takes_turns; // ranks take turns, micro-batch by micro-batch (job/job.h)
    int64_t segment;  // positions per pass (train/segments.h); 0: all
    // comm.context: so many ranks of this communicator share each window, and divide its segments.
    // 0 or 1: none does.
    int64_t context;
    struct dt_comm *comm;
};

struct dt_input {
    const struct dt_backend *backend;
    struct dt_input_config config;
    struct dt_array_list arrays;   // that the model reads
    void *batch[DT_BATCH_ARRAYS];  // [sequences, length, width], device memory
    void *micro[DT_BATCH_ARRAYS];  // [micro, length, width], device memory
    bool present[DT_BATCH_ARRAYS]; // the current batch has the array
    int64_t micro_batches, next;   // of the current batch; next one to hand out
    struct dt_stream *copies;
    struct dt_event *copied, *used;
};

// Bytes of device memory for the `arrays` of the model.
int64_t dt_input_bytes(const struct dt_array_list *arrays, const struct dt_input_config *config);
// Destroy it even if create fails.
dt_status dt_input_create(const struct dt_backend *backend, const struct dt_array_list *arrays,
                          const struct dt_input_config *config, struct dt_input *input);
// Zeros are fine. Waits like dt_input_settle.
void dt_input_destroy(struct dt_input *input);
// Gets the loader's next batch, whose micro-batches `stream` will process. *micro_batches: how many
// it has; 0 after the last batch of a sequential loader. *wait_ms (may be NULL): how long the
// caller waited for the loader.
dt_status dt_input_next(struct dt_input *input, struct dt_loader *loader, struct dt_stream *stream,
                        int64_t *micro_batches, double *wait_ms);
// The next micro-batch of the batch, valid on `stream` until the following one is requested.
// Request all micro-batches of a batch before dt_input_next.
dt_status dt_input_micro_batch(struct dt_input *input, struct dt_stream *stream,
                               struct dt_model_input *micro);
// Waits until no copy reads a host batch; call before closing a loader. The current error is kept.
void dt_input_settle(struct dt_input *input);
