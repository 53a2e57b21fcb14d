// Gradient buckets: the flat gradient arena, cut into runs of parameter rows of at most bucket_mb,
// smaller ones at the end (bucket_plan.h), each all-reduced as soon as all its rows are ready,
// while backward runs. The arena holds rows in the order in which backward finishes them, so
// buckets fill and are sent in table order. Buckets travel from device to device (device_comm.h) or
// through the host: in place where the host reads the device's memory, else by pinned copies. A
// lone rank sends nothing.
//
// Sharded, a bucket is reduce-scattered: a rank has the sums of its own pieces only and updates the
// weights of these. Then what a forward pass reads of the buckets is gathered: the weights, or, if
// storage is bf16, their copies, and of the weights the few ranges that a pass reads in fp32. All
// masters are gathered when something else reads them.
//
// Each level of sharding (enum dt_sharding) keeps less in whole arrays. From DT_SHARD_GRADIENTS on
// gradients live in a ring (base/ring.h): backward enters one unit after the other, each
// micro-batch sends its buckets, and their sums are added to this rank's own in a compact array.
// With DT_SHARD_WEIGHTS what a pass reads is a ring too: it is gathered from the compact arrays of
// all ranks, a unit ahead of the one that a pass is in, and again in backward. The first and the
// last unit, and the few ranges that a pass reads in fp32 beside bf16 copies, stay for a step.
#pragma once

#include "backend/backend.h"
#include "base/ring.h"
#include "base/span.h"
#include "comm/comm.h"

struct dt_buckets;

// What is spread over the ranks, each level with those before it.
enum dt_sharding { DT_SHARD_NOTHING, DT_SHARD_STATES, DT_SHARD_GRADIENTS, DT_SHARD_WEIGHTS };

struct dt_buckets_config {
    float *gradients; // [elements] or, with a ring, [ring.elements] fp32 (device memory)
    int64_t elements;
    const int64_t *row_ends; // [n_rows] ascending: row r is elements [row_ends[r-1], row_ends[r])
    int64_t n_rows;
    int64_t largest_row;  // elements
    int64_t bucket_bytes; // of fp32 gradient; a row larger than this shares no bucket
    enum dt_dtype wire;   // DT_F32 or DT_BF16
    enum dt_sum_order order;
    double *sums; // [n_sums] fp64 (device memory), summed over ranks beside the gradients
    int64_t n_sums;
    struct dt_stream *stream; // on which rows become ready and, after a wait, sums are used
    bool between_devices;     // by the device communicator of this build
    bool selftest;            // connecting checks all communicators on known values
    enum dt_sharding shard;   // where there are several ranks; then these are needed:
    enum dt_dtype storage;    // DT_F32, or DT_BF16: a forward pass reads `copies`, and `masters`
    // As a pass reads them, device memory: weights [elements] fp32, and where storage is bf16
    // copies [elements] of them. With DT_SHARD_WEIGHTS: copies [ring.elements] beside weights
    // [masters.elements], or weights [ring.elements].
    float *weights;
    dt_bf16 *copies;
    struct dt_pieces masters; // ranges of the weights, each of an even number; spans are borrowed
    bool gathers_gradients;   // dt_buckets_gather_gradients is called
    struct dt_ring ring;      // its units are borrowed. n 0: there is none
    float *own;               // with a ring: the gradients of this rank's pieces, compact
    float *own_weights;       // with DT_SHARD_WEIGHTS: their weights …
    dt_bf16 *own_copies;      // … and the copies of these
    double *norms;            // [a norm block's sum each] fp64: zero but for this rank's own
    int64_t n_norms;
};

dt_status dt_buckets_create(struct dt_comm *comm, const struct dt_backend *backend,
                            const struct dt_buckets_config *config, struct dt_buckets **buckets);
// Opens the device communicator where the configuration asks for it. All ranks call it together,
// each after its create.
dt_status dt_buckets_connect(struct dt_buckets *buckets);
void dt_buckets_destroy(struct dt_buckets *buckets); // NULL is fine
int64_t dt_buckets_count(const struct dt_buckets *buckets);
// Bytes that create allocates for these settings, for the memory plan: on the device, and pinned on
// the host. Both read the numbers of the configuration only, no pointer.
int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks);
int64_t dt_buckets_host_bytes(const struct dt_buckets_config *config,
                              const struct dt_backend *backend, int n_ranks);
// Bytes that connect allocates on the device for sums in the order DT_SUM_TREE.
int64_t dt_buckets_tree_bytes(const struct dt_buckets_config *config, int n_ranks);
// How many elements of the arena a rank holds; reads the numbers of the configuration only.
int64_t dt_buckets_held(const struct dt_buckets_config *config, int n_ranks);
// The pieces that a rank holds; reads the numbers of the configuration and row_ends only.
// pieces->spans is malloc'ed.
dt_status dt_buckets_pieces(const struct dt_buckets_config *config,
                            const struct dt_backend *backend, const struct dt_comm_info *info,
                            struct dt_pieces *pieces);
// Whether a step's calls do no more than put work on streams, so that they can be captured.
bool dt_buckets_can_be_captured(const struct dt_buckets *buckets);

// Says that the sums of this rank are final on the stream: once a step, before any row.
dt_status dt_buckets_sums_ready(struct dt_buckets *buckets);
// Says that the gradient of `row` is final on the stream. Rows come in any order, each once a step.
dt_status dt_buckets_ready(struct dt_buckets *buckets, int64_t row);
// Makes the stream wait until every bucket (sharded: this rank's pieces of them) and the sums are
// those of all ranks. After it the next step may begin. The host waits only for buckets that travel
// through it. A row that was never announced is an error.
dt_status dt_buckets_wait(struct dt_buckets *buckets);

// With a ring, each micro-batch is a step of its own, to which the sums need not belong; and the
// rows come in table order. Its gradients are added to config.own, or replace what is there.
void dt_buckets_add(struct dt_buckets *buckets, bool adds);
// With a ring, call it before the gradient of `row` and those after it are written, from the first
// row on: makes the stream wait until its unit's slot is free.
dt_status dt_buckets_enter(struct dt_buckets *buckets, int64_t row);

// With DT_SHARD_WEIGHTS, call it before a pass: units that share slots are gathered again.
// `changed`: the pieces of the weights, final on the stream, are not what was gathered before.
dt_status dt_buckets_begin_pass(struct dt_buckets *buckets, bool changed);
// In the pass: makes the stream wait until the weights of the unit that has `row` are in its slot.
// Begins to gather those that come after it in forward or backward.
dt_status dt_buckets_read(struct dt_buckets *buckets, int64_t row, bool backward);

// Sharded, call it after that wait. Makes the stream wait until the norms are those of all ranks.
dt_status dt_buckets_sum_norms(struct dt_buckets *buckets);
// Makes the stream wait until the pieces of the gradients, which are final on it, are here from all
// ranks: not their sums any more, but what an optimizer has put in their place. With a ring: those
// of the rows of a unit, after the units above it.
dt_status dt_buckets_gather_gradients(struct dt_buckets *buckets, int64_t unit);
// Call it when all pieces of the weights, and their copies, are final on the stream. Sends what a
// forward pass reads of each bucket to all ranks, in the order in which it does: the last rows
// first.
dt_status dt_buckets_gather(struct dt_buckets *buckets);
// During that, makes the stream wait until a forward pass can read `row` and all rows after it.
dt_status dt_buckets_need(struct dt_buckets *buckets, int64_t row);
// Ends it: makes the stream wait for all of them.
dt_status dt_buckets_gathered(struct dt_buckets *buckets);
// Call it at any other time, when the pieces of the weights are final on the stream. Makes the
// stream wait until all weights, and their copies, are here.
dt_status dt_buckets_gather_masters(struct dt_buckets *buckets);
