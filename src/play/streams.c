// The recurrent states of a player's streams: which of the two places holds a stream's, and the
// flat block that a stream is saved as. Uses model, backend, base.
#include "play/player_internal.h"

#include <stdlib.h>
#include <string.h>

// At the start of a block.
struct header {
    uint64_t kind;
    struct dt_philox rng;
};

// The arrays of all layers of a stream in turn: where each is in `state`, and its bytes.
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
    for (; w->layer < dt_model_config(model)->n_layer; w->layer++, w->array = 0) {
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

dt_status dt_streams_create(struct dt_player *player)
{
    int64_t n = player->info.streams;
    player->side = calloc((size_t)n, 1);
    player->rng = calloc((size_t)n, sizeof *player->rng);
    if (!player->side || !player->rng)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %lld streams", (long long)n);
    for (int64_t i = 0; i < n; i++)
        player->rng[i] = dt_philox_init((uint64_t)i, 0, 0);
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_model_state_create(player->model, n, &player->state[i]));
    DT_TRY(dt_model_state_create_window(player->model, &player->before));
    DT_TRY(dt_model_state_create_window(player->model, &player->after));
    struct walk w = walk_of(player, 0, 0);
    player->info.state = sizeof(struct header);
    while (next_array(&w))
        player->info.state += w.bytes;
    return DT_OK;
}

void dt_streams_destroy(struct dt_player *player)
{
    dt_model_state_destroy(player->model, player->before);
    dt_model_state_destroy(player->model, player->after);
    for (int i = 0; i < 2; i++)
        dt_model_state_destroy(player->model, player->state[i]);
    free(player->side);
    free(player->rng);
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
    dt_model_state_move_window(player->model, player->before, player->state[side], first);
    dt_model_state_move_window(player->model, player->after, player->state[!side], first);
    return DT_OK;
}

void dt_streams_end(struct dt_player *player, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++)
        player->side[i] = !player->side[i];
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
    return dt_stream_sync(&player->backend, NULL);
}

dt_status dt_player_save(struct dt_player *player, int64_t stream, void *block)
{
    DT_TRY(check_stream(player, stream));
    struct header header;
    memset(&header, 0, sizeof header);
    header.kind = player->kind;
    header.rng = player->rng[stream];
    memcpy(block, &header, sizeof header);
    struct walk w = walk_of(player, stream, player->side[stream]);
    for (char *to = (char *)block + sizeof header; next_array(&w); to += w.bytes)
        DT_TRY(dt_to_host(&player->backend, to, w.at, w.bytes, NULL));
    return dt_stream_sync(&player->backend, NULL);
}

// A block may come from a file: its counts are places in memory, unlike its other numbers.
static bool has_counts(const struct dt_player *player, const char *from)
{
    for (struct walk w = walk_of(player, 0, 0); next_array(&w); from += w.bytes)
        for (int64_t i = 0; w.spec->type == DT_I32 && i < w.spec->width; i++) {
            int32_t value;
            memcpy(&value, from + i * (int64_t)sizeof value, sizeof value);
            if (value < 0 || value > w.spec->last)
                return false;
        }
    return true;
}

dt_status dt_player_restore(struct dt_player *player, int64_t stream, const void *block)
{
    DT_TRY(check_stream(player, stream));
    struct header header;
    memcpy(&header, block, sizeof header);
    if (header.kind != player->kind || header.rng.left < 0 || header.rng.left > 4 ||
        !has_counts(player, (const char *)block + sizeof header))
        return DT_FAIL(DT_USER,
                       "restore what was saved from the same model with the same weights' "
                       "type",
                       "the block is not a saved state of this model");
    player->rng[stream] = header.rng;
    struct walk w = walk_of(player, stream, player->side[stream]);
    for (const char *from = (const char *)block + sizeof header; next_array(&w); from += w.bytes)
        DT_TRY(dt_to_device(&player->backend, w.at, from, w.bytes, NULL));
    return dt_stream_sync(&player->backend, NULL);
}
