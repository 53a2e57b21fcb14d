// Keeps the recurrent states of a player's streams. There are two arrays of states: a step reads a
// stream's state from one and writes it to the other, so that a failed step changes nothing. A
// stream is saved as one flat block: a header, then its arrays. If targets are fed back or played
// row by row, the number of steps and the targets of the last steps follow, newest first, padded
// with zeros. Beyond the remembered steps only the position in the chunk matters, so the smallest
// number of steps with the same position is saved, and equal streams have equal blocks.
#include "play/player_internal.h"

#include "base/memory.h"
#include "base/round.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

static const char mark[8] = "dtstate2"; // blocks of the first format began with the kind

// The header of a block.
struct header {
    char mark[sizeof mark];
    uint64_t sum; // XXH3 of everything after it
    uint64_t kind, weights;
    struct dt_philox rng;
};
enum { SUMMED = offsetof(struct header, kind) };

// Iterates over a stream's arrays of all layers and the head: address in `state`, and bytes.
struct walk {
    const struct dt_player *player;
    const struct dt_model_state *state;
    int64_t stream, layer;
    int array;
    const struct dt_array_spec *spec;
    char *at;
    int64_t bytes;
};

static bool next_array(struct walk *w)
{
    const struct dt_model *model = w->player->model;
    for (; w->layer <= dt_model_config(model)->n_layer; w->layer++, w->array = 0) {
        const struct dt_array_list *list = dt_model_state_arrays(model, w->layer);
        for (; w->array < list->n; w->array++) {
            w->at = dt_model_state_array(w->state, w->layer, w->array);
            w->spec = &list->arrays[w->array];
            w->bytes = dt_array_bytes(w->spec, 1);
            if (w->at && w->bytes > 0) {
                w->at += w->stream * w->bytes;
                w->array++;
                return true;
            }
        }
    }
    return false;
}

static struct walk walk_of(const struct dt_player *player, int64_t stream, int side)
{
    return (struct walk){.player = player, .state = player->state[side], .stream = stream};
}

static dt_status check_stream(const struct dt_player *player, int64_t stream)
{
    if (stream >= 0 && stream < player->info.streams)
        return DT_OK;
    return DT_FAIL(DT_USER, NULL, "stream %lld is not in 0 … %lld", (long long)stream,
                   (long long)player->info.streams - 1);
}

// Bytes at the end of a block for the number of steps and their targets.
static int64_t remembered_bytes(const struct dt_player *player)
{
    return player->back == 0 ? 0
                             : (int64_t)sizeof(int64_t) +
                                   player->back * player->info.targets * (int64_t)sizeof(float);
}

dt_status dt_streams_create(struct dt_player *player)
{
    int64_t n = player->info.streams;
    DT_TRY(DT_NEW(&player->side, n, "%lld streams", (long long)n));
    DT_TRY(DT_NEW(&player->rng, n, "%lld streams", (long long)n));
    DT_TRY(DT_NEW(&player->rng_before, n, "%lld streams", (long long)n));
    for (int64_t i = 0; i < n; i++)
        player->rng[i] = dt_philox_init((uint64_t)i, 0, 0);
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_model_state_create(player->model, n, &player->state[i]));
    struct walk w = walk_of(player, 0, 0);
    player->info.state = sizeof(struct header);
    while (next_array(&w))
        player->info.state += w.bytes;
    player->info.state += remembered_bytes(player);
    if (player->back == 0)
        return DT_OK;
    DT_TRY(DT_NEW(&player->steps, n, "%lld streams", (long long)n));
    return DT_NEW(&player->memory, n * (player->back + 1) * player->info.targets,
                  "the last %lld predictions of %lld streams", (long long)player->back,
                  (long long)n);
}

float *dt_streams_memory(const struct dt_player *player, int64_t stream, int64_t back)
{
    int64_t slots = player->back + 1, slot = (player->steps[stream] + slots - back) % slots;
    return player->memory + (stream * slots + slot) * player->info.targets;
}

bool dt_streams_in_chunk(const struct dt_player *player, int64_t stream)
{
    int64_t rows = player->info.action_steps;
    return rows > 1 && player->steps[stream] % rows != 0;
}

void dt_streams_destroy(struct dt_player *player)
{
    for (int i = 0; i < 2; i++)
        dt_model_state_destroy(player->model, player->state[i]);
    free(player->side);
    free(player->rng);
    free(player->rng_before);
    free(player->steps);
    free(player->memory);
}

dt_status dt_streams_begin(struct dt_player *player, int64_t first, int64_t n)
{
    int side = player->side[first];
    for (int64_t i = first + 1; i < first + n; i++) {
        struct walk from = walk_of(player, i, !side), to = walk_of(player, i, side);
        if (player->side[i] == side)
            continue;
        while (next_array(&from) && next_array(&to))
            DT_TRY(dt_copy(&player->backend, to.at, from.at, from.bytes, NULL));
        player->side[i] = (unsigned char)side;
    }
    return DT_OK;
}

void dt_streams_end(struct dt_player *player, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++) {
        player->side[i] = !player->side[i];
        if (player->back > 0)
            player->steps[i]++;
    }
}

dt_status dt_player_seed(struct dt_player *player, int64_t stream, uint64_t seed)
{
    DT_TRY(check_stream(player, stream));
    player->rng[stream] = dt_philox_init(seed, 0, 0);
    return DT_OK;
}

dt_status dt_player_reset(struct dt_player *player, int64_t stream)
{
    DT_TRY(check_stream(player, stream));
    struct walk w = walk_of(player, stream, player->side[stream]);
    while (next_array(&w))
        DT_TRY(dt_fill(&player->backend, w.at, 0, w.bytes, NULL));
    if (player->back > 0)
        player->steps[stream] = 0;
    return dt_stream_sync(&player->backend, NULL);
}

dt_status dt_player_feed(struct dt_player *player, int64_t stream, const float *targets)
{
    int64_t n = player->info.targets;
    DT_TRY(check_stream(player, stream));
    if (player->n_fed == 0)
        return DT_OK;
    if (player->steps[stream] == 0)
        return DT_FAIL(DT_USER,
                       "step first: what follows a frame takes the place of what was drawn",
                       "stream %lld has made no step", (long long)stream);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(targets[i]))
            return DT_FAIL(DT_USER, NULL, "target %lld of stream %lld is %g", (long long)i,
                           (long long)stream, (double)targets[i]);
    float *played = dt_streams_memory(player, stream, 1);
    for (int64_t i = 0; i < n; i++)
        played[i] = player->later[i] ? played[i] : targets[i];
    return DT_OK;
}

static uint64_t sum_of(const struct dt_player *player, const void *block)
{
    return XXH3_64bits((const char *)block + SUMMED, (size_t)player->info.state - SUMMED);
}

dt_status dt_player_save(struct dt_player *player, int64_t stream, void *block)
{
    DT_TRY(check_stream(player, stream));
    struct header header;
    memset(&header, 0, sizeof header);
    memcpy(header.mark, mark, sizeof mark);
    header.kind = player->kind;
    header.weights = player->weights;
    header.rng = player->rng[stream];
    memcpy(block, &header, sizeof header);
    struct walk w = walk_of(player, stream, player->side[stream]);
    char *to = (char *)block + sizeof header;
    for (; next_array(&w); to += w.bytes)
        DT_TRY(dt_to_host(&player->backend, to, w.at, w.bytes, NULL));
    if (player->back > 0) {
        size_t bytes = (size_t)player->info.targets * sizeof(float);
        int64_t steps = player->steps[stream], more = steps - player->back;
        if (more > 0)
            steps = player->back + more % player->info.action_steps;
        memset(to, 0, (size_t)remembered_bytes(player));
        to = mempcpy(to, &steps, sizeof steps);
        for (int64_t back = 1; back <= dt_min_i64(steps, player->back); back++)
            to = mempcpy(to, dt_streams_memory(player, stream, back), bytes);
    }
    DT_TRY(dt_stream_sync(&player->backend, NULL));
    header.sum = sum_of(player, block);
    memcpy((char *)block + offsetof(struct header, sum), &header.sum, sizeof header.sum);
    return DT_OK;
}

static dt_status check_block(const struct dt_player *player, const void *block, int64_t bytes)
{
    static const char hint[] = "reset the stream, or restore what was saved from this model";
    struct header header;
    if (bytes >= (int64_t)sizeof player->kind &&
        memcmp(block, &player->kind, sizeof player->kind) == 0)
        return DT_FAIL(DT_USER, hint,
                       "the block is a state that an older version saved, which does not say with "
                       "which weights");
    if (bytes != player->info.state)
        return DT_FAIL(DT_USER, hint, "the block has %lld bytes; a state of this model has %lld",
                       (long long)bytes, (long long)player->info.state);
    memcpy(&header, block, sizeof header);
    if (memcmp(header.mark, mark, sizeof mark) != 0)
        return DT_FAIL(
            DT_USER, hint,
            "the block is not a saved state: it does not begin with this version's mark");
    if (header.sum != sum_of(player, block))
        return DT_FAIL(DT_USER, hint,
                       "the block is damaged: its checksum is not that of its bytes");
    if (header.kind != player->kind)
        return DT_FAIL(DT_USER, hint,
                       "the block was saved from another model, with weights of another type, or "
                       "where another number of action_steps was played");
    if (header.weights != player->weights)
        return DT_FAIL(DT_USER, hint,
                       "the block was saved with other weights: of another training, or of another "
                       "step of it");
    // A block may be an untrusted file. Its counts are used as indices into memory, so check their
    // limits.
    const char *from = (const char *)block + sizeof header;
    bool fits = header.rng.left >= 0 && header.rng.left <= 4;
    for (struct walk w = walk_of(player, 0, 0); next_array(&w); from += w.bytes)
        for (int64_t i = 0; w.spec->type == DT_I32 && i < w.spec->width; i++) {
            int32_t value;
            memcpy(&value, from + i * (int64_t)sizeof value, sizeof value);
            fits = fits && value >= 0 && value <= w.spec->last;
        }
    if (player->back > 0) {
        int64_t steps;
        memcpy(&steps, from, sizeof steps);
        fits = fits && steps >= 0 && steps < player->back + player->info.action_steps;
    }
    if (!fits)
        return DT_FAIL(DT_USER, hint,
                       "the block is not a saved state: a count in it is impossible");
    return DT_OK;
}

dt_status dt_player_restore(struct dt_player *player, int64_t stream, const void *block,
                            int64_t bytes)
{
    DT_TRY(check_stream(player, stream));
    DT_TRY(check_block(player, block, bytes));
    memcpy(&player->rng[stream], (const char *)block + offsetof(struct header, rng),
           sizeof *player->rng);
    struct walk w = walk_of(player, stream, player->side[stream]);
    const char *from = (const char *)block + sizeof(struct header);
    for (; next_array(&w); from += w.bytes)
        DT_TRY(dt_to_device(&player->backend, w.at, from, w.bytes, NULL));
    if (player->back > 0) {
        size_t row = (size_t)player->info.targets * sizeof(float);
        memcpy(&player->steps[stream], from, sizeof *player->steps);
        from += sizeof *player->steps;
        int64_t steps = dt_min_i64(player->steps[stream], player->back);
        for (int64_t back = 1; back <= steps; back++, from += row)
            memcpy(dt_streams_memory(player, stream, back), from, row);
    }
    return dt_stream_sync(&player->backend, NULL);
}
