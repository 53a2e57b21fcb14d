// Hands states from a segment of a window to the next one where another rank runs it
// (comm.context), and the gradients of states back. The ranks of a group run the segments in turn:
// rank r of R has segments r, r + R, …. An op receives its state just before it runs and sends the
// one that it leaves as soon as it has run. So a rank lags the one before it by the time of a scan,
// layers overlap, and every state has the bits that one rank alone would give it. In the second
// sweep of a block that reads both ways the states go the other way.
//
// Sending returns at once. Receiving waits for the other rank under the communicator's time-out, as
// a collective does. What a segment sends in forward must stay until dt_relay_settle says so.
//
// Attention that reads both ways runs over whole windows, of which each rank of the group has some
// heads at all positions: before and after it all ranks swap, each with every other one. Only CPUs
// do this.
//
// Between devices the host waits for nothing. Receives are on the stream of the passes. Sends are
// on a stream of their own, which follows that one by events, so a message that its receiver does
// not yet wait for holds up no op.
#pragma once

#include "comm/device_comm.h"
#include "model/model.h"

struct dt_relay_state {
    struct dt_comm *comm; // NULL: one rank runs all segments
    struct dt_relay relay;
    int ranks;          // of the group
    int64_t parts;      // segments of each
    int next, previous; // ranks of the segments after and before this rank's
    // What is on its way from segments with an even number, and from those with an odd number.
    struct dt_relay_sends {
        struct dt_request **requests;
        int64_t n;
    } sends[2];
    int side;                 // of `sends`
    struct dt_stream *stream; // of the passes
    // Between devices; comm NULL: between CPUs.
    struct dt_relay_device {
        struct dt_device_comm *comm; // borrowed
        const struct dt_backend *backend;
        struct dt_event *ready; // on the stream of the passes: the message may be sent
        struct dt_relay_channel {
            struct dt_stream *sends;
            struct dt_event *sent[2]; // on the stream of sends: the last message of a side
            bool sending[2];          // … has been enqueued
        } channels[2];                // of states, and of sums, which overtake them
        int n;                        // channels
    } device;
    uint32_t window; // counts them: a rank that receives a state of another one fails
};

// `context` ranks of `comm`, the group of this rank, share each window in `parts` segments each.
// The relay must stay where it is.
void dt_relay_create(struct dt_comm *comm, int64_t context, int64_t parts,
                     struct dt_relay_state *relay);
// Sends from device to device from now on; with `sums` these too.
dt_status dt_relay_connect(struct dt_relay_state *relay, const struct dt_backend *backend,
                           struct dt_device_comm *device_comm, bool sums);
void dt_relay_destroy(struct dt_relay_state *relay); // zeros are fine
// Sends a sum over segments, without those before, to the rank of the segment before, or receives
// it from the rank of the segment after, earlier than the gradients of states that this rank sent.
dt_status dt_relay_sum(struct dt_relay_state *relay, bool sends, uint32_t name, void *array,
                       int64_t bytes);
// Waits, between devices the stream alone, until what segments of this side (0 or 1) have sent has
// left its memory; the next sends are of this side.
dt_status dt_relay_settle(struct dt_relay_state *relay, int side);
