// Gradient buckets: the flat gradient arena is cut into runs of parameter rows of at most
// bucket_mb, smaller at the end (bucket_plan.h). Each bucket is all-reduced as soon as all its rows
// are ready, while backward runs. Rows are in the order in which backward finishes them, so buckets
// fill and are sent in table order. Buckets are sent from device to device (device_comm.h) or
// through the host: in place with unified memory, else by pinned copies. A single rank sends
// nothing.
//
// A sharded bucket is reduce-scattered: a rank gets only the sums of its own pieces and updates
// their weights. Then an all-gather brings what a forward pass reads: the weights or, with bf16
// storage, their copies and the few ranges that a pass reads in fp32. The master weights are
// gathered only when something else reads them.
//
// Each level of sharding (enum dt_sharding) keeps less in whole arrays. From DT_SHARD_GRADIENTS on,
// gradients are in a ring (base/ring.h): backward enters one unit after the other, each micro-batch
// sends its buckets, and this rank's sums are added up in a compact array. With DT_SHARD_WEIGHTS
// the weights that a pass reads are in a ring too: each unit is gathered from the compact arrays of
// all ranks one unit ahead, and again in backward. The first and the last unit, and the ranges read
// in fp32 beside bf16 copies, stay for a whole step.
#pragma once

#include "backend/backend.h"
#include "base/ring.h"
#include "base/span.h"
#include "comm/comm.h"

struct dt_buckets;

// What is sharded over the ranks; each level includes the ones before it.
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
    double *sums; // [n_sums] fp64 (device memory), summed over ranks with the gradients
    int64_t n_sums;
    struct dt_stream *stream; // rows become ready on it and, after a wait, sums are used on it
    bool between_devices;     // uses the device communicator of this build
    int context;              // its ring: ranks that share a window; 0 or 1: there is none
    bool selftest;            // dt_buckets_connect checks all communicators on known values
    enum dt_sharding shard;   // ignored on one rank; otherwise needs the fields below
    enum dt_dtype storage;    // DT_F32, or DT_BF16: a forward pass reads `copies`, and `masters`
    // What a pass reads, device memory: weights [elements] fp32 and, with bf16 storage, copies
    // [elements]. With DT_SHARD_WEIGHTS: weights [ring.elements] or, with bf16 storage, copies
    // [ring.elements] and weights [masters.elements].
    float *weights;
    dt_bf16 *copies;
    struct dt_pieces masters; // ranges of the weights, even numbers of elements; borrowed
    bool gathers_gradients;   // dt_buckets_gather_gradients is called
    struct dt_ring ring;      // units are borrowed; n 0: no ring
    float *own;               // with a ring: the gradients of this rank's pieces, compact
    float *own_weights;       // with DT_SHARD_WEIGHTS: the weights of these pieces
    dt_bf16 *own_copies;      // … and their bf16 copies
    double *norms;            // fp64, a sum per norm block; zero except for this rank's own
    int64_t n_norms;
};

dt_status dt_buckets_create(struct dt_comm *comm, const struct dt_backend *backend,
                            const struct dt_buckets_config *config, struct dt_buckets **buckets);
// Opens the device communicator if the configuration asks for it. Collective; each rank calls it
// after create.
dt_status dt_buckets_connect(struct dt_buckets *buckets);
// The device communicator, once connected; NULL: gradients are sent through the host.
struct dt_device_comm *dt_buckets_device_comm(const struct dt_buckets *buckets);
void dt_buckets_destroy(struct dt_buckets *buckets); // NULL is fine
int64_t dt_buckets_count(const struct dt_buckets *buckets);
// Bytes that create allocates on the device, and pinned on the host, for the memory plan. Neither
// follows pointers of the configuration.
int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks);
int64_t dt_buckets_host_bytes(const struct dt_buckets_config *config,
                              const struct dt_backend *backend, int n_ranks);
// Bytes of device memory that connect allocates for sums in the order DT_SUM_TREE.
int64_t dt_buckets_tree_bytes(const struct dt_buckets_config *config, int n_ranks);
// How many elements of the arena a rank holds. Follows no pointers of the configuration.
int64_t dt_buckets_held(const struct dt_buckets_config *config, int n_ranks);
// The pieces that a rank holds; of the configuration's pointers only row_ends is read. Caller frees
// pieces->spans.
dt_status dt_buckets_pieces(const struct dt_buckets_config *config,
                            const struct dt_backend *backend, const struct dt_comm_info *info,
                            struct dt_pieces *pieces);
// Whether a step's calls only put work on streams, so that they can be captured.
bool dt_buckets_can_be_captured(const struct dt_buckets *buckets);

// Announces that this rank's sums are final on the stream. Call once per step, before any row.
dt_status dt_buckets_sums_ready(struct dt_buckets *buckets);
// Announces that the gradient of `row` is final on the stream. Rows may come in any order, each
// once per step.
dt_status dt_buckets_ready(struct dt_buckets *buckets, int64_t row);
// Makes the stream wait until every bucket (sharded: this rank's pieces) and the sums are summed
// over all ranks. Then the next step may begin. The host waits only for buckets that are sent
// through it. It is an error if a row was not announced.
dt_status dt_buckets_wait(struct dt_buckets *buckets);

// With a ring, each micro-batch is a step for these calls, its rows come in table order, and the
// sums are optional. `adds`: its gradients are added to config.own instead of replacing it.
void dt_buckets_add(struct dt_buckets *buckets, bool adds);
// With a ring, call before the gradient of `row` and of later rows is written, from the first row
// on. Makes the stream wait until the slot of its unit is free.
dt_status dt_buckets_enter(struct dt_buckets *buckets, int64_t row);

// With DT_SHARD_WEIGHTS, call before a pass: units that share slots are gathered again. `changed`:
// the pieces of the weights, final on the stream, have changed since they were gathered.
dt_status dt_buckets_begin_pass(struct dt_buckets *buckets, bool changed);
// Call during the pass. Makes the stream wait until the weights of the unit of `row` are in its
// slot, and begins to gather the next unit of forward or backward.
dt_status dt_buckets_read(struct dt_buckets *buckets, int64_t row, bool backward);

// If sharded, call after dt_buckets_wait. Makes the stream wait until the norms of all ranks are
// there.
dt_status dt_buckets_sum_norms(struct dt_buckets *buckets);
// Gathers the pieces of the gradients, which are final on the stream and in whose place an
// optimizer has put other values, from all ranks, and makes the stream wait for them. With a ring:
// those of one unit's rows, after the units above it.
dt_status dt_buckets_gather_gradients(struct dt_buckets *buckets, int64_t unit);
// Call when all pieces of the weights, and their copies, are final on the stream. Sends what a
// forward pass reads to all ranks, in the order in which it reads: last rows first.
dt_status dt_buckets_gather(struct dt_buckets *buckets);
// During a gather, makes the stream wait until a forward pass can read `row` and all rows after it.
dt_status dt_buckets_need(struct dt_buckets *buckets, int64_t row);
// Ends the gather: makes the stream wait for all rows.
dt_status dt_buckets_gathered(struct dt_buckets *buckets);
// Call outside a gather, when the pieces of the weights are final on the stream. Makes the stream
// wait until all weights, and their copies, have arrived.
dt_status dt_buckets_gather_masters(struct dt_buckets *buckets);
