// A model that predicts several steps at once. Played with action_steps, it gives the bits that a
// caller gets who keeps the predicted chunk himself, through saves, resets and failures.
#include "data/columns.h"
#include "step_calls.h"

#include <xxhash.h>

enum { S = 3, T = 23, W = 8, ROWS = 4, F = 19 };
// The first inputs are two targets of the step before, with a flag.
static const char reads[] = "t[0:2]@-1:valid a[0:16] b[0:2]:id*7";

struct chunk_model {
    struct model_folder folder;
    // Libdtrain_step keeps the chunks of `chunk`, the test those of `hand`.
    dtrain_step *chunk, *hand;
    struct dtrain_step_info info, plain;
    int64_t next[W];
    int k, at[S]; // at: each stream's place in its chunk
    float kept[S][W];
};

static dtrain_step *open_rows(const char *path, int32_t k)
{
    const struct dtrain_step_options options = {.streams = S, .action_steps = k};
    dtrain_step *handle = NULL;
    FINE(dtrain_step_open(path, &options, &handle));
    return handle;
}

static void open_both(struct chunk_model *m, const char *layers, const char *inputs,
                      const char *targets, bool chained, int k)
{
    m->folder.config = small_config(layers, policy);
    FLAG_OF(m->folder.config, autoregressive) = chained;
    snprintf(m->folder.config.inputs, sizeof m->folder.config.inputs, "%s", inputs);
    snprintf(m->folder.config.targets, sizeof m->folder.config.targets, "%s", targets);
    write_model(&m->folder, "chunk");
    m->k = k;
    m->chunk = open_rows(m->folder.path, k);
    m->hand = open_rows(m->folder.path, 0);
    FINE(dtrain_step_describe(m->chunk, &m->info));
    FINE(dtrain_step_describe(m->hand, &m->plain));
    CHECK_INT(m->info.chunk, ROWS);
    CHECK_INT(m->info.action_steps, k);
    CHECK_INT(m->plain.action_steps, 1);
    CHECK_INT(dt_columns_chunk(targets, W, m->next), ROWS);
}

static void close_both(struct chunk_model *m)
{
    dtrain_step_close(m->chunk);
    dtrain_step_close(m->hand);
    free_model(&m->folder);
}

// Plays as a caller who keeps the chunk: draws at its first step and feeds its next row at each
// later step.
static void play_by_hand(struct chunk_model *m, int s, const struct feed *feed, double temperature,
                         float *outputs)
{
    if (m->at[s] == 0) {
        FINE(dtrain_step_sample(m->hand, s, feed->frame, feed->ids, temperature, m->kept[s],
                                outputs));
    } else {
        float moved[W];
        FINE(dtrain_step_step(m->hand, s, feed->frame, feed->ids, outputs));
        for (int i = 0; i < W; i++)
            moved[i] = m->kept[s][m->next[i]];
        memcpy(m->kept[s], moved, sizeof moved);
    }
    FINE(dtrain_step_feed(m->hand, s, m->kept[s]));
    m->at[s] = (m->at[s] + 1) % m->k;
}

static void step_all(struct chunk_model *m, int t, double temperature)
{
    float frames[S * F], drawn[S * W], outputs[S * 64], want[64];
    int32_t ids[S * 2];
    for (int s = 0; s < S; s++) {
        struct feed feed = feed_at(&m->info, (uint32_t)s, t);
        memcpy(frames + s * F, feed.frame, F * sizeof(float));
        memcpy(ids + s * 2, feed.ids, 2 * sizeof(int32_t));
    }
    FINE(dtrain_step_batch(m->chunk, 0, S, frames, ids, temperature, drawn, outputs));
    for (int s = 0; s < S; s++) {
        struct feed feed = feed_at(&m->info, (uint32_t)s, t);
        size_t bytes = (size_t)m->info.n_values * sizeof(float);
        play_by_hand(m, s, &feed, temperature, want);
        CHECK(memcmp(drawn + s * W, m->kept[s], W * sizeof(float)) == 0,
              "another row of stream %d at step %d", s, t);
        CHECK(memcmp(outputs + s * m->info.n_values, want, bytes) == 0,
              "other outputs of stream %d at step %d", s, t);
    }
}

// Restores stream `to` of both handles from the saved stream `from`.
static void save_and_restore(struct chunk_model *m, int from, int to)
{
    size_t bytes[] = {(size_t)m->info.state_bytes, (size_t)m->plain.state_bytes};
    char *blocks[] = {malloc(bytes[0]), malloc(bytes[1])};
    FINE(dtrain_step_save(m->chunk, from, blocks[0], bytes[0]));
    FINE(dtrain_step_save(m->hand, from, blocks[1], bytes[1]));
    FINE(dtrain_step_restore(m->chunk, to, blocks[0], bytes[0]));
    FINE(dtrain_step_restore(m->hand, to, blocks[1], bytes[1]));
    memcpy(m->kept[to], m->kept[from], sizeof m->kept[to]);
    m->at[to] = m->at[from];
    for (int i = 0; i < 2; i++)
        free(blocks[i]);
}

static void test_rows(const char *layers, const char *inputs, const char *targets, bool chained,
                      int k)
{
    struct chunk_model m = {0};
    open_both(&m, layers, inputs, targets, chained, k);
    for (int t = 0; t < T; t++) {
        if (t == 6) { // from here on, streams are at different places in their chunks
            FINE(dtrain_step_reset(m.chunk, 1));
            FINE(dtrain_step_reset(m.hand, 1));
            m.at[1] = 0;
        }
        if (t == 9)
            save_and_restore(&m, 1, 0);
        if (t == 1 || t == 11)
            check_failed_step(m.chunk, &m.info, 1, feed_at(&m.info, 1, t), F - 1);
        if (t == 2 || t == 15)
            save_and_restore(&m, 0, 2);
        if (t == 17) { // another action is played; the rows that follow stay as they were drawn
            const float other[W] = {7, 7, 7, 7, 7, 7, 7, 7};
            FINE(dtrain_step_feed(m.chunk, 0, other));
            FINE(dtrain_step_feed(m.hand, 0, other));
        }
        step_all(&m, t, t % 3);
    }
    close_both(&m);
}

// With temperature 0, a model that reads no earlier actions plays rows of its predictions for all
// frames.
static void test_episode(void)
{
    static float all[T][W];
    struct chunk_model m = {0};
    open_both(&m, "mamba gru", "a[0:19] b[0:2]:id*7", "t[0:2]@3:7", false, 3);
    for (int t = 0; t < T; t++) {
        struct feed feed = feed_at(&m.info, 5, t);
        float drawn[W];
        int row = t % 3;
        FINE(dtrain_step_sample(m.hand, 0, feed.frame, feed.ids, 0, all[t], NULL));
        FINE(dtrain_step_sample(m.chunk, 0, feed.frame, feed.ids, 0, drawn, NULL));
        for (int i = 0; i < 2; i++) {
            CHECK(drawn[i] == all[t - row][2 * row + i], "number %d of step %d", i, t);
            CHECK(drawn[W - 2 + i] == all[t - row][W - 2 + i], "the last row at step %d", t);
        }
    }
    close_both(&m);
}

static void test_blocks(void)
{
    struct chunk_model m = {0};
    struct dtrain_step_info info;
    open_both(&m, "gru", reads, "t[0:2]@0:4", false, 3);
    size_t bytes = (size_t)m.info.state_bytes;
    char *block = malloc(bytes);
    dtrain_step *two = open_rows(m.folder.path, 2);
    FINE(dtrain_step_describe(two, &info));
    CHECK_INT(info.state_bytes, m.info.state_bytes);
    for (int t = 0; t < 5; t++)
        step_all(&m, t, 0);
    FINE(dtrain_step_save(m.chunk, 0, block, bytes));
    REFUSED(dtrain_step_restore(two, 0, block, bytes), "another number of action_steps");
    int64_t steps, at = m.info.state_bytes - W * 4 - 8;
    memcpy(&steps, block + at, sizeof steps);
    CHECK_INT(steps, 2); // step 5 is the third of a chunk of three; so is step 2
    for (steps = 3; steps < 6; steps++) {
        memcpy(block + at, &steps, sizeof steps);
        uint64_t sum = XXH3_64bits(block + 16, bytes - 16);
        memcpy(block + 8, &sum, sizeof sum);
        if (steps == 3)
            FINE(dtrain_step_restore(m.chunk, 1, block, bytes));
        else
            REFUSED(dtrain_step_restore(m.chunk, 1, block, bytes), "a count in it is impossible");
    }
    dtrain_step_close(two);
    free(block);
    close_both(&m);
}

static void refused(const char *targets, int32_t k, const char *part)
{
    const struct dtrain_step_options options = {.action_steps = k};
    struct model_folder folder = {.config = small_config("gru", policy)};
    dtrain_step *handle = NULL;
    snprintf(folder.config.inputs, sizeof folder.config.inputs, "a[0:19] b[0:2]:id*7");
    snprintf(folder.config.targets, sizeof folder.config.targets, "%s", targets);
    write_model(&folder, "refused");
    REFUSED(dtrain_step_open(folder.path, &options, &handle), part);
    REFUSED(dtrain_step_open(folder.path, &options, &handle), "chunks of one length");
    free_model(&folder);
}

static void check_chunk(const char *targets, int64_t n, int64_t want, int64_t next_of_0)
{
    int64_t next[W] = {0};
    CHECK_INT(dt_columns_chunk(targets, n, next), want);
    CHECK_INT(next[0], next_of_0);
}

int main(void)
{
    static const char turns[] = // rows of a group are listed dataset by dataset
        "t[0:1] u[0:1] t[0:1]@+1 u[0:1]@+1 t[0:1]@+2 u[0:1]@+2 t[0:1]@+3 u[0:1]@+3";
    make_scratch();
    check_chunk("t[0:2]@0:4", W, 4, 2);
    check_chunk("t[0:2]@6:10", W, 4, 2);
    check_chunk("t[0:1]@0:4 u[0:1]@2:6", W, 4, 1);
    check_chunk("u[0:1]@2 u[0:1]@1 u[0:1]", 3, 3, 0);
    check_chunk(turns, W, 4, 2);
    check_chunk("t[0:1]@0:3 u[0:1]@0:5", W, 1, 1);
    check_chunk("t[0:1]@0:7 u[0:1]", W, 1, 1);
    check_chunk("t[0:8]", W, 1, 0);
    check_chunk("t[0:2]@0:4", 7, 1, 0); // the targets have 8 columns, not 7
    check_chunk("t@0:4", W, 1, 0);
    for (int k = 2; k <= ROWS; k++) {
        test_rows("mamba gru", reads, "t[0:2]@0:4", false, k);
        test_rows("attention mlp", reads, "t[0:2]@0:4", true, k);
        test_rows("lstm", "t[0:1]@-1:valid a[0:17] b[0:2]:id*7", turns, false, k);
    }
    test_rows("mamba2", "a[0:19] b[0:2]:id*7", "t[0:1]@0:4 u[0:1]@6:10", false, 3);
    test_episode();
    test_blocks();
    refused("t[0:2]@0:4", 5, "action_steps is 5, not in 1 … 4, ");
    refused("t[0:2]@0:4", -1, "action_steps is -1, not in 1 … 4, ");
    refused("t[0:2]@0:3 u[0:2]", 2, "not in 1 … 1, the steps that the model predicts at a time");
    refused("t[0:8]", 2, "(targets = t[0:8])");
    refused("", 2, "not in 1 … 1");
    remove_scratch();
    return test_end();
}
