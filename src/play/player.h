// A player is for inference: it runs a model on independent streams, each with a recurrent state of
// its own, one position (or a few) at a time. On the CPU a stream's results are bitwise identical
// for the same inputs, whatever the other streams are and whichever of them run together. All
// memory is allocated when a player is created. One thread at a time uses a player.
#pragma once

#include "model/choose.h"
#include "model/model.h"

enum dt_play_weights { DT_PLAY_AS_STORED, DT_PLAY_F32, DT_PLAY_BF16, DT_PLAY_INT8 };

struct dt_player_config {
    int64_t streams;
    int64_t length; // the most positions of a stream in one call
    enum dt_play_weights weights;
    bool ema;             // the moving average of the weights, which a checkpoint may have
    int64_t action_steps; // of one prediction, which is a chunk, that are played; 0: 1
};

struct dt_player;

// The model and weights of a Hugging Face directory or checkpoint.
dt_status dt_player_open(const struct dt_backend *backend, const char *dir,
                         const struct dt_player_config *config, struct dt_player **player);
// A model without weights, until dt_player_set_weights gives them: flat fp32 in host memory, in the
// layout of the parameter table.
dt_status dt_player_create(const struct dt_backend *backend, const struct dt_model_config *model,
                           const struct dt_player_config *config, struct dt_player **player);
dt_status dt_player_set_weights(struct dt_player *player, const float *weights);
void dt_player_close(struct dt_player *player); // NULL is fine

struct dt_play_info {
    int64_t streams, length;
    int64_t vocab;   // the model reads tokens below it; 0: frames
    int64_t frame;   // numbers of a frame
    int64_t n_ids;   // id columns beside it
    int64_t values;  // floats of all outputs of a position, in their order
    int64_t targets; // values that are drawn from them: the model's target columns
    int64_t state;   // bytes of a stream's state
    int64_t chunk;   // rows of a prediction, of which action_steps are played; 1: it is no chunk
    int64_t action_steps;
    enum dt_play_weights weights;
};
void dt_player_info(const struct dt_player *player, struct dt_play_info *info);
const struct dt_model *dt_player_model(const struct dt_player *player);

// What goes into a step and comes out of it, for n streams of `length` positions each. Where inputs
// are targets of earlier frames (data/columns.h: dt_fed) the length is 1 and the player fills them
// in, with what it drew in the stream's steps before: frames and ids may have anything there. As in
// training they are missing (0 of normalised numbers, id 0, flag 0) as long as there was no such
// step.
struct dt_play {
    int64_t first, n, length;
    const float *frames; // [n, length, frame] as recorded: the player normalises them
    const int32_t *ids;  // [n, length, n_ids], or tokens [n, length]
    double temperature;  // of drawn values; 0: the most likely ones
    // How a language model draws tokens, in place of `temperature`; or NULL. seen [n,
    // vocab]: the tokens that the repetition penalty applies to; or NULL.
    const struct dt_choice *choice;
    const unsigned char *seen;
    // Results of the last position; each may be NULL. Outputs that are conditioned on those before
    // see the drawn values; without `drawn` the most likely ones. Values are drawn at every
    // action_steps-th step of a stream; at the steps between, its last chunk moves up by one row
    // (the last row stays), and outputs are computed as without `drawn`.
    float *predicted; // [n, values]: logits, values of regressions
    float *drawn;     // [n, targets]
    bool *not_finite; // true: the call failed since an output is not finite; or NULL
};
// Advances streams [first, first + n). A wrong input is DT_USER, an output of any stream that is
// not finite DT_MACHINE; no stream has then advanced or drawn a random number.
dt_status dt_player_step(struct dt_player *player, const struct dt_play *play);

// `targets` [info.targets] take the place of those that the stream's last step drew, in what is fed
// back: what was played in fact. Where several rows of a chunk are played the rows to come stay.
// DT_USER before the first step; nothing happens where nothing is fed back.
dt_status dt_player_feed(struct dt_player *player, int64_t stream, const float *targets);
// The random numbers of a stream start at `seed`; a new player's streams at their own numbers.
dt_status dt_player_seed(struct dt_player *player, int64_t stream, uint64_t seed);
// Forgets all that the stream has seen; its random numbers continue.
dt_status dt_player_reset(struct dt_player *player, int64_t stream);
// Writes the whole of a stream, random numbers too, as one block of info.state bytes of host
// memory.
dt_status dt_player_save(struct dt_player *player, int64_t stream, void *block);
// Restores a stream from such a block, which any stream of any player with the same weights may
// have saved. A block that is damaged, of other weights, of another model or of an older version is
// DT_USER, and the message says which; the stream is then as before.
dt_status dt_player_restore(struct dt_player *player, int64_t stream, const void *block,
                            int64_t bytes);
