// A player runs inference on independent streams, each with its own recurrent state, one or a few
// positions at a time. On the CPU a stream's results are bitwise identical for the same inputs,
// whichever other streams run with it. All memory is allocated when a player is created. A player
// is used by one thread at a time.
#pragma once

#include "model/choose.h"
#include "model/model.h"

enum dt_play_weights { DT_PLAY_AS_STORED, DT_PLAY_F32, DT_PLAY_BF16, DT_PLAY_INT8 };

struct dt_player_config {
    int64_t streams;
    int64_t length; // most positions per stream and call
    enum dt_play_weights weights;
    bool ema;             // use a checkpoint's moving average of the weights, if it has one
    int64_t action_steps; // steps of a predicted chunk that are played; 0: 1
};

struct dt_player;

// Opens the model and weights of a Hugging Face directory or checkpoint.
dt_status dt_player_open(const struct dt_backend *backend, const char *dir,
                         const struct dt_player_config *config, struct dt_player **player);
// Creates a player without weights, which dt_player_set_weights provides: flat fp32 in host memory,
// in the layout of the parameter table.
dt_status dt_player_create(const struct dt_backend *backend, const struct dt_model_config *model,
                           const struct dt_player_config *config, struct dt_player **player);
dt_status dt_player_set_weights(struct dt_player *player, const float *weights);
void dt_player_close(struct dt_player *player); // NULL is fine

struct dt_play_info {
    int64_t streams, length;
    int64_t vocab;   // tokens are in [0, vocab); 0: the model reads frames
    int64_t frame;   // numbers per frame
    int64_t n_ids;   // id columns per frame
    int64_t values;  // floats of all outputs of a position, in order
    int64_t targets; // values drawn from the outputs: the model's target columns
    int64_t state;   // bytes of a stream's saved state
    int64_t chunk;   // rows of a prediction, of which action_steps are played; 1: no chunk
    int64_t action_steps;
    enum dt_play_weights weights;
};
void dt_player_info(const struct dt_player *player, struct dt_play_info *info);
const struct dt_model *dt_player_model(const struct dt_player *player);

// Inputs and results of a step, for n streams of `length` positions each. If inputs are targets of
// earlier frames (data/columns.h: dt_fed), the length is 1 and the player fills these inputs with
// what it drew in the stream's earlier steps, ignoring the values given. Before there was such a
// step they are missing (normalised number 0, id 0, flag 0), as in training.
struct dt_play {
    int64_t first, n, length;
    const float *frames; // [n, length, frame] as recorded; the player normalises them
    const int32_t *ids;  // [n, length, n_ids], or tokens [n, length]
    double temperature;  // for drawn values; 0: the most likely ones
    // How a language model draws tokens, instead of `temperature`; or NULL. seen [n, vocab]: the
    // tokens that the repetition penalty applies to; or NULL.
    const struct dt_choice *choice;
    const unsigned char *seen;
    // Results of the last position; each may be NULL. Outputs that are conditioned on earlier
    // outputs see the drawn values or, without `drawn`, the most likely ones. Values are drawn at
    // every action_steps-th step of a stream; in between, its last chunk moves up by one row (the
    // last row is repeated), and outputs are computed as without `drawn`.
    float *predicted; // [n, values]: logits, values of regressions
    float *drawn;     // [n, targets]
    bool *not_finite; // true: the call failed because an output is not finite; or NULL
};
// Advances streams [first, first + n). An invalid input is DT_USER, a non-finite output of any
// stream DT_MACHINE; then no stream has advanced or drawn a random number.
dt_status dt_player_step(struct dt_player *player, const struct dt_play *play);

// Replaces the values fed back from the stream's last step by `targets` [info.targets], the values
// that were actually played. Later rows of a chunk are still played. DT_USER before the first step;
// a no-op if nothing is fed back.
dt_status dt_player_feed(struct dt_player *player, int64_t stream, const float *targets);
// Seeds the random numbers of a stream. By default a stream's seed is its index.
dt_status dt_player_seed(struct dt_player *player, int64_t stream, uint64_t seed);
// Resets the state of the stream; its random numbers continue.
dt_status dt_player_reset(struct dt_player *player, int64_t stream);
// Saves a stream, including its random numbers, as one block of info.state bytes of host memory.
dt_status dt_player_save(struct dt_player *player, int64_t stream, void *block);
// Restores a stream from a block saved by any stream of any player with the same weights. DT_USER,
// saying which, if the block is damaged or of other weights, another model or an older version; the
// stream is then unchanged.
dt_status dt_player_restore(struct dt_player *player, int64_t stream, const void *block,
                            int64_t bytes);
