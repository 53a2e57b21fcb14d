// Private to player.c, which runs steps, and streams.c, which keeps the states of streams.
#pragma once

#include "base/rng.h"
#include "data/columns.h"
#include "model/kinds.h"
#include "play/player.h"

struct dt_player {
    struct dt_backend backend; // borrowed
    struct dt_model *model;
    struct dt_play_info info;
    int64_t group; // streams that run together
    // A step reads one and writes the other.
    struct dt_model_state *state[2];
    unsigned char *side;          // [streams]: which of the two has the stream's state
    struct dt_philox *rng;        // [streams]
    struct dt_philox *rng_before; // [streams]: before the call, in case it fails
    uint64_t kind;                // hash of the model's architecture, for state blocks
    uint64_t weights;             // hash of all weights, for state blocks
    // Batch arrays that the model reads, or -1; their memory on the device and on the host.
    int tokens, frames, ids, targets;
    void *device[DT_BATCH_ARRAYS];
    float *staged;              // [group, length, frame] in storage type
    float *mean, *deviation;    // [frame]: for normalising frames
    struct dt_id_tables tables; // ids of a column are below its table's size
    // Inputs that are targets of earlier steps: what they are, which columns of frames and ids they
    // fill, and the targets of each stream's last steps. Step k is in slot k % (back + 1), so that
    // a step writes no slot that it reads.
    int n_fed;
    struct dt_fed fed[DT_FED_MOST];
    bool *is_fed[2];     // [frame], [n_ids]
    int32_t *staged_ids; // [group, n_ids]
    int64_t back;        // most steps back; 0: no feedback, and one row is played
    float *memory;       // [streams, back + 1, targets]
    int64_t *steps;      // [streams], since the stream's start
    // If targets are a chunk of rows:
    int64_t *next;    // [targets] index of the same target one row later
    bool *later;      // [targets] whether it belongs to a row after the first
    float *predicted; // [group, widest output or d_model]
    float *drawn;     // [group, length, targets]: as the model reads them
    void *scratch;    // for dt_choose; NULL: no language model
};

dt_status dt_streams_create(struct dt_player *player);
void dt_streams_destroy(struct dt_player *player);
// Call dt_streams_begin before a step of streams [first, first + n): it moves their states to one
// side, and the step writes the other. dt_streams_end after the step makes the new states current;
// until then the streams keep the old ones.
dt_status dt_streams_begin(struct dt_player *player, int64_t first, int64_t n);
void dt_streams_end(struct dt_player *player, int64_t first, int64_t n);
// The targets of a stream's step that is `back` steps before the next one; 0: those of the next
// step, until dt_streams_end.
float *dt_streams_memory(const struct dt_player *player, int64_t stream, int64_t back);
// Whether the stream's next step plays a row of the previous chunk.
bool dt_streams_in_chunk(const struct dt_player *player, int64_t stream);
