// The parts of a step's traffic, for the files of the buckets: bucket_memory.c creates them,
// buckets.c walks through a step, bucket_parts.c sends and receives. A part is the data of one
// collective. Parts are sent in one order, the same on all ranks, and received one by one: between
// devices a part travels by one collective on the buckets' stream; through the host by a copy,
// whose collective is posted to the communicator as soon as the copy is there, in the order in
// which parts were sent.
#pragma once

#include "comm/buckets.h"
#include "comm/device_comm.h"

struct part {
    enum dt_operation operation; // with blocks (DT_REDUCE_SCATTER, DT_ALL_GATHER): one a rank
    int64_t n_rows, missing; // rows that it holds (the sums: 1), and those not ready in this step
    int64_t elements;        // of all blocks
    struct dt_span out, in;  // elements that its collective reads and gives on this rank
    enum dt_dtype wire_type;
    void *data;             // what is summed or gathered, device memory
    void *wire;             // `data` itself, or its copy in the type of the wire; device memory
    void *host;             // `wire` itself, or its copy in pinned memory; host path only
    dt_bf16 *copy;          // of what was gathered, or NULL; device memory
    void *own;              // this rank's block in a compact array: sums go there, and what is
                            // gathered comes from there; NULL: it is in `data` alone
    int64_t first, held;    // of a bucket: its first element, and of this rank's block in such an
                            // array
    struct dt_span packed;  // of the arena: its fp32 weights come from `packed` with this part
    struct dt_event *ready; // on the caller's stream: `data` is final
    struct dt_event *sent;  // on the own stream: `host` holds it; later: what came is in `data`
    struct dt_request *request;
    bool travels; // sent, and not received
};

// Parts [first, end), in the order in which they are sent.
struct phase {
    int64_t first, end;
};

struct row {
    int64_t first, end; // the parts that hold it: none, where it is empty
    int64_t unit;       // of the ring
    bool ready;         // in this step
};

struct dt_buckets {
    struct dt_buckets_config config; // without row_ends, which are the caller's
    struct dt_comm *comm;
    struct dt_backend backend;
    struct dt_device_comm *device_comm; // NULL: through the host
    bool alone;
    struct dt_stream *stream; // the buckets' own, on which parts travel
    dt_bf16 *wire;            // as large as the gradients, device memory; NULL where fp32 travels
    float *packed;            // [masters.elements], device memory; NULL where not needed
    char *host;               // pinned copies of all parts; NULL where none are needed
    struct row *rows;
    struct part *parts; // [n_parts] of all phases
    int64_t n_parts;
    struct phase sums, gradients, norms, weights, masters; // weights and masters may be the same
    struct phase updates;                                  // the gathered gradients
    struct phase *units; // [ring.n] each one's parts in `gradients`
    struct unit_state {
        bool here, whole; // its weights travel or are in its slot; with those of its tail
    } * states;           // [ring.n]
    int64_t n_sharded;    // of the gradients' parts: the first ones
    int64_t next;         // of `gradients`: sent next in this step
    int64_t unit;         // of the ring: entered last in this step
    bool sums_sent, gathers;
    bool adds;              // what is summed is added to part->own
    int64_t *queue;         // [n_parts] parts whose collectives have not begun, in a circle
    int64_t queued, posted; // ever
};

// Sends a part whose `data` (gathered: its `own`) is final on the caller's stream.
dt_status dt_part_send(struct dt_buckets *b, int64_t part);
// Begins the collectives of those whose copies have arrived on the host; `wait`: of all.
dt_status dt_parts_post(struct dt_buckets *b, bool wait);
// Makes the caller's stream wait for the parts [first, end), those of them that travel.
dt_status dt_parts_receive(struct dt_buckets *b, int64_t first, int64_t end);
// Whether what a pass reads is in a ring.
bool dt_buckets_spread_weights(const struct dt_buckets_config *config);
// Elements that are sharded: 0 on one rank.
int64_t dt_buckets_sharded(const struct dt_buckets_config *config, int n_ranks);
