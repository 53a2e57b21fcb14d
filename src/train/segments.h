// A window is run in segments (model.segment), with the memory of one. Forward runs from the first
// to the last and keeps the states at the borders between them. Backward goes from the last to the
// first: it runs a segment forward again from its border, and hands the gradient of that state to
// the segment before. So gradients are those of the whole window. Forward alone needs no more than
// two states. If a window is one segment, nothing is copied or kept. All memory stays at
// one address, for captured graphs. With comm.context the ranks of a group take turns
// (train/relay.h): each runs as many segments as the others.
//
// A model that reads both ways runs part by part instead: a block needs the whole window of what
// the part before it leaves (dt_model_shape.window), since its second direction begins at the
// window's end. Each direction of a block goes through all segments with states of its own.
#pragma once

#include "base/round.h"
#include "train/input.h"
#include "train/relay.h"

struct dt_segments {
    const struct dt_backend *backend;
    struct dt_model *model; // borrowed
    struct dt_input_config config;
    bool by_part;        // a model that reads both ways
    int64_t n;           // segments of a window that this rank runs
    int64_t place, step; // these are segments place, place + step, … of the window
    int64_t kept;        // states that backward needs; all that there are without training
    // A rank that runs all segments keeps the state at border i, after segment i, in states[i %
    // kept], and that of the second direction in states[kept + i % kept]. In a group the state
    // before this rank's segment k is in states[k % kept], and the state after it is sent
    // from sent[k % 2], the last ones of `states`.
    struct dt_model_state **states, **sent;
    struct dt_relay_state relay;
    struct dt_model_state *gradients[2]; // of border i, i % 2; training
    void *arrays[DT_BATCH_ARRAYS];       // [micro, segment, width], device memory; micro > 1
    // In a group whose sums are reproducible: what backward adds up, fp32 gradients and loss sums,
    // goes from each segment to the one before, so that all are added as one rank adds them. NULL:
    // each rank has the sums of its own segments.
    struct dt_segment_sum {
        void *data;
        int64_t bytes;
    } sums[2];
    float *losses;  // [micro, length]: what the model keeps of a segment, of
    uint8_t *right; // all of them; NULL without shape.losses
};

// A segment is a multiple of this many positions: whole chunks of the scans, so that segments
// change none of their bits.
static inline int64_t dt_segment_unit(const struct dt_backend *backend)
{
    return dt_max_i64(backend->op->scan_chunk, backend->op->ssd_chunk);
}
// Adds what dt_segments_create allocates for a model of this shape.
dt_status dt_segments_plan(const struct dt_model_config *config, const struct dt_array_list *arrays,
                           const struct dt_model_shape *shape, const struct dt_input_config *batch,
                           struct dt_memory_plan *plan);
// Destroy the segments even if this fails.
dt_status dt_segments_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_input_config *batch, struct dt_segments *segments);
// Call before the first pass if ranks share windows and have a device communicator.
dt_status dt_segments_connect(struct dt_segments *segments, struct dt_device_comm *device_comm);
void dt_segments_destroy(struct dt_segments *segments); // zeros are fine
// Makes `part` the pass over this rank's segment k of the pass over a window `whole`. Valid until
// the next one is made.
dt_status dt_segments_pass(struct dt_segments *segments, const struct dt_pass *whole, int64_t k,
                           struct dt_pass *part);
// dt_segments_pass, and runs the pass forward up to its loss. Call it from the first segment to the
// last.
dt_status dt_segments_forward(struct dt_segments *segments, const struct dt_pass *whole, int64_t k,
                              struct dt_pass *part);
// Waits until states and gradients that were sent have left their memory: before backward writes
// other gradients, and after the last segment of a window.
dt_status dt_segments_settle(struct dt_segments *segments);
// Call after backward through a segment: passes the sums to the segment before it.
dt_status dt_segments_hand_on(struct dt_segments *segments, const struct dt_pass *part);
// Whether this rank passes on the sums of its first segment too, so that no sums stay here.
bool dt_segments_keep_none(const struct dt_segments *segments);
// Whether this rank runs the segment that position t of a window is in.
bool dt_segments_own(const struct dt_segments *segments, int64_t t);
// dt_model_loss of the pass over a segment; keeps the losses of its positions. In training it first
// receives the sums of later segments, if ranks pass them on.
dt_status dt_segments_loss(struct dt_segments *segments, const struct dt_pass *part, double scale,
                           struct dt_loss_sum *sum);
// Runs dt_segments_forward and dt_segments_loss again, for backward through segment k. Call after
// backward through all later segments.
dt_status dt_segments_again(struct dt_segments *segments, const struct dt_pass *whole, int64_t k,
                            double scale, struct dt_loss_sum *sum, struct dt_pass *part);
// Backward through segment k, from its loss. With by_part the call for segment 0 goes through all
// segments of every part of the model, and the other calls do nothing.
dt_status dt_segments_backward(struct dt_segments *segments, const struct dt_pass *whole, int64_t k,
                               const struct dt_pass *part);
// dt_model_row_losses of the window, after the losses of all segments.
bool dt_segments_row_losses(const struct dt_segments *segments, const struct dt_model_input *window,
                            struct dt_row_losses *rows);
