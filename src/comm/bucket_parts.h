// The parts of a step's traffic. A part is the data of one collective. All ranks send parts in the
// same order and receive them one by one. Between devices a part is one collective on the buckets'
// stream. Through the host it is copied, and its collective is posted to the communicator once the
// copy has arrived, in the order in which parts were sent. bucket_memory.c creates parts, buckets.c
// runs a step, bucket_parts.c sends and receives.
#pragma once

#include "comm/buckets.h"
#include "comm/device_comm.h"

struct part {
    enum dt_operation operation; // DT_REDUCE_SCATTER and DT_ALL_GATHER: one block per rank
    int64_t n_rows, missing;     // its rows (the sums: 1); those not yet ready in this step
    int64_t elements;            // total over the blocks
    struct dt_span out, in;      // elements that its collective reads and writes on this rank
    enum dt_dtype wire_type;
    void *data;             // device memory to sum or gather
    void *wire;             // device memory: `data` itself, or its copy in the wire's type
    void *host;             // host path only: `wire` itself, or its pinned copy
    dt_bf16 *copy;          // device memory: bf16 copies of gathered data, or NULL
    void *own;              // this rank's block in a compact array: target of sums, source of
                            // gathers; NULL: only in `data`
    int64_t first, held;    // buckets: first element in the arena, and in the compact array
    struct dt_span packed;  // range of the arena whose fp32 weights are in `packed`
    struct dt_event *ready; // on the caller's stream: `data` is final
    struct dt_event *sent;  // on the own stream: `host` is filled; later: `data` has the result
    struct dt_request *request;
    bool travels; // sent, but not yet received
};

// Parts [first, end), in the order in which they are sent.
struct phase {
    int64_t first, end;
};

struct row {
    int64_t first, end; // the parts that hold it; none if it is empty
    int64_t unit;       // index in the ring
    bool ready;         // its gradient is, in this step
};

struct dt_buckets {
    struct dt_buckets_config config; // without row_ends, which the caller owns
    struct dt_comm *comm;
    struct dt_backend backend;
    struct dt_device_comm *device_comm; // NULL: through the host
    bool alone;
    struct dt_stream *stream; // the buckets' own
    dt_bf16 *wire;            // as large as the gradients, device memory; NULL if fp32 is sent
    float *packed;            // [masters.elements], device memory; NULL if not needed
    char *host;               // pinned copies of all parts; NULL if not needed
    struct row *rows;
    struct part *parts; // [n_parts] [n_parts], of all phases
    int64_t n_parts;
    struct phase sums, gradients, norms, weights, masters; // weights and masters may be the same
    struct phase updates;                                  // gathered gradients
    struct phase *units; // [ring.n] the unit's parts in `gradients`
    struct unit_state {
        bool here, whole; // its weights are in its slot or on their way; with its tail's
    } * states;           // [ring.n]
    int64_t n_sharded;    // sharded parts of the gradients, which come first
    int64_t next;         // part of `gradients` to send next in this step
    int64_t unit;         // unit of the ring entered last in this step
    bool sums_sent, gathers;
    bool adds;              // sums are added to part->own
    int64_t *queue;         // [n_parts] circular queue of parts whose collectives have not begun
    int64_t queued, posted; // totals
};

// Sends a part whose `data` (DT_ALL_GATHER: `own`) is final on the caller's stream.
dt_status dt_part_send(struct dt_buckets *b, int64_t part);
// Begins the collectives of parts whose copies have arrived on the host; with `wait`, of all parts.
dt_status dt_parts_post(struct dt_buckets *b, bool wait);
// Makes the caller's stream wait for those of parts [first, end) that were sent.
dt_status dt_parts_receive(struct dt_buckets *b, int64_t first, int64_t end);
