// Declares the player as its two files see it: player.c runs steps, streams.c keeps the states of
// its streams.
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
    // A step reads one of the two and writes the other.
    struct dt_model_state *state[2];
    unsigned char *side;          // [streams]: which of the two holds the stream's state
    struct dt_philox *rng;        // [streams]
    struct dt_philox *rng_before; // [streams]: before the call, where it fails
    uint64_t kind;                // in state blocks: a hash of the model's architecture
    uint64_t weights;             // in state blocks: a hash of all weights
    // Batch arrays that the model reads, or -1; and their memory: of the device, and of the host.
    int tokens, frames, ids, targets;
    void *device[DT_BATCH_ARRAYS];
    float *staged;              // [group, length, frame] in storage type
    float *mean, *deviation;    // [frame]: frames are normalised by them
    struct dt_id_tables tables; // ids of a column are below its table's size
    // Inputs that are targets of earlier steps: what they are, which columns of the frames and ids
    // they take, and the targets of each stream's last steps, of which those of step k are in slot
    // k % (back + 1). So a step writes none that it reads.
    int n_fed;
    struct dt_fed fed[DT_FED_MOST];
    bool *is_fed[2];     // [frame], [n_ids]
    int32_t *staged_ids; // [group, n_ids]
    int64_t back;        // the most steps; 0: nothing is fed back, and one row played
    float *memory;       // [streams, back + 1, targets]
    int64_t *steps;      // [streams], since the stream's start
    // If the targets are a chunk of rows:
    int64_t *next;    // [targets] index of the same target one row later
    bool *later;      // [targets] whether it belongs to a row after the first
    float *predicted; // [group, widest output or d_model]
    float *drawn;     // [group, length, targets]: as the model reads them
    void *scratch;    // of dt_choose; NULL: the model is no language model
};

dt_status dt_streams_create(struct dt_player *player);
void dt_streams_destroy(struct dt_player *player);
// dt_streams_begin comes before a step of streams [first, first + n): their states are on one side
// afterwards, and the step writes the other. The streams keep the states that they had until
// dt_streams_end, which gives them those after the step.
dt_status dt_streams_begin(struct dt_player *player, int64_t first, int64_t n);
void dt_streams_end(struct dt_player *player, int64_t first, int64_t n);
// The targets of a stream's step `back` steps before the next one (0: of the next one, until
// dt_streams_end).
float *dt_streams_memory(const struct dt_player *player, int64_t stream, int64_t back);
// Whether the stream's next step plays a row of the last one's chunk.
bool dt_streams_in_chunk(const struct dt_player *player, int64_t stream);
