// A model whose inputs are its predictions for earlier frames. libdtrain_step fills them in and
// gives the bits that a caller gets who keeps the drawn values himself, through saves, resets and
// failures.
#include "base/text.h"
#include "data/columns.h"
#include "step_calls.h"

enum { S = 3, T = 24, F = 19, W = 8, DEEP = 3 };
// Inputs: buttons of the step before; aim of three and of two steps before, each with a flag; and
// the class x of the step before, by a table.
static const char inputs[] = "a[0:2] b[0:1]:id*7 t[0:3]@-1 a[2:5] t[4:6]@-3:-1:valid "
                             "t[3:4]:id*9@-1 a[5:10]";

// What a caller of the plain model has to keep.
struct history {
    int steps;
    float drawn[T][W];
};

static void fill(const struct history *h, const struct model_folder *folder, struct feed *feed)
{
    static const struct {
        int column, n, target, back, flag;
    } parts[] = {{2, 3, 0, 1, -1}, {8, 2, 4, 3, 10}, {11, 2, 4, 2, 13}};
    const float *mean = folder->weights + dt_params_find(&folder->params, "stem.mean")->offset;
    for (int i = 0; i < 3; i++) {
        bool is_there = h->steps >= parts[i].back;
        for (int k = 0; k < parts[i].n; k++) // a missing number is 0 after normalisation
            feed->frame[parts[i].column + k] =
                is_there ? h->drawn[h->steps - parts[i].back][parts[i].target + k]
                         : mean[parts[i].column + k];
        if (parts[i].flag >= 0)
            feed->frame[parts[i].flag] = is_there;
    }
    feed->ids[1] = h->steps > 0 ? (int32_t)h->drawn[h->steps - 1][3] : 0;
}

static void spoil(struct feed *feed)
{
    for (int i = 0; i < F; i++)
        if ((i >= 2 && i < 5) || (i >= 8 && i < 14))
            feed->frame[i] = NAN;
    feed->ids[1] = 999;
}

struct both {
    dtrain_step *fed, *plain;
    struct model_folder folder;
    struct dtrain_step_info info;
    struct history history[S];
    char *blocks[2];
    struct history saved;
};

// Runs a step of all streams, drawing at this temperature.
static void step_all(struct both *b, int t, double temperature)
{
    float frames[2][S * F], drawn[2][S * W], outputs[2][S * 64];
    int32_t ids[2][S * 2];
    for (int s = 0; s < S; s++) {
        struct feed feed = feed_at(&b->info, (uint32_t)s, t);
        for (int plain = 1; plain >= 0; plain--) {
            if (plain)
                fill(&b->history[s], &b->folder, &feed);
            else
                spoil(&feed);
            memcpy(frames[plain] + s * F, feed.frame, F * sizeof(float));
            memcpy(ids[plain] + s * 2, feed.ids, 2 * sizeof(int32_t));
        }
    }
    FINE(dtrain_step_batch(b->fed, 0, S, frames[0], ids[0], temperature, drawn[0], outputs[0]));
    FINE(dtrain_step_batch(b->plain, 0, S, frames[1], ids[1], temperature, drawn[1], outputs[1]));
    size_t bytes = (size_t)(S * b->info.n_values) * sizeof(float);
    CHECK(memcmp(outputs[0], outputs[1], bytes) == 0, "other outputs at step %d", t);
    CHECK(memcmp(drawn[0], drawn[1], sizeof drawn[0]) == 0, "other draws at step %d", t);
    for (int s = 0; s < S; s++) {
        struct history *h = &b->history[s];
        memcpy(h->drawn[h->steps++], drawn[0] + s * W, W * sizeof(float));
    }
}

// Runs a step without drawing: later steps then read the most likely values.
static void step_without_draw(struct both *b, int t)
{
    struct dtrain_step_info info;
    float drawn[W], outputs[2][64];
    struct feed feed = feed_at(&b->info, 0, t);
    FINE(dtrain_step_describe(b->plain, &info));
    char *before = malloc((size_t)info.state_bytes);
    FINE(dtrain_step_save(b->plain, 0, before, (size_t)info.state_bytes));
    fill(&b->history[0], &b->folder, &feed);
    FINE(dtrain_step_sample(b->plain, 0, feed.frame, feed.ids, 0, drawn, NULL));
    FINE(dtrain_step_restore(b->plain, 0, before, (size_t)info.state_bytes));
    FINE(dtrain_step_step(b->plain, 0, feed.frame, feed.ids, outputs[1]));
    spoil(&feed);
    FINE(dtrain_step_step(b->fed, 0, feed.frame, feed.ids, outputs[0]));
    CHECK(memcmp(outputs[0], outputs[1], (size_t)info.n_values * sizeof(float)) == 0,
          "other outputs without a draw");
    free(before);
    memcpy(b->history[0].drawn[b->history[0].steps++], drawn, sizeof drawn);
}

static void save(struct both *b, int stream)
{
    struct dtrain_step_info plain;
    FINE(dtrain_step_describe(b->plain, &plain));
    CHECK_INT(b->info.state_bytes - plain.state_bytes, 8 + DEEP * W * 4);
    FINE(dtrain_step_save(b->fed, stream, b->blocks[0], (size_t)b->info.state_bytes));
    FINE(dtrain_step_save(b->plain, stream, b->blocks[1], (size_t)plain.state_bytes));
    b->saved = b->history[stream];
}

static void restore(struct both *b, int stream)
{
    struct dtrain_step_info plain;
    FINE(dtrain_step_describe(b->plain, &plain));
    FINE(dtrain_step_restore(b->fed, stream, b->blocks[0], (size_t)b->info.state_bytes));
    FINE(dtrain_step_restore(b->plain, stream, b->blocks[1], (size_t)plain.state_bytes));
    b->history[stream] = b->saved;
}

static void test_feedback(const char *layers, bool chained, int32_t weights)
{
    struct both b = {0};
    struct model_folder fed = {.config = small_config(layers, policy)};
    const float other[W] = {1, 0, 1, 4, 0.25f, -3, 2, 2};
    FLAG_OF(fed.config, autoregressive) = chained;
    b.folder.config = fed.config;
    snprintf(fed.config.inputs, sizeof fed.config.inputs, "%s", inputs);
    snprintf(fed.config.targets, sizeof fed.config.targets, "t[0:8]");
    write_model(&fed, "fed");
    write_model(&b.folder, "plain");
    b.fed = open_step(fed.path, weights, S);
    b.plain = open_step(b.folder.path, weights, S);
    FINE(dtrain_step_describe(b.fed, &b.info));
    CHECK_INT(b.info.n_targets, W);
    for (int i = 0; i < 2; i++)
        b.blocks[i] = malloc((size_t)b.info.state_bytes);
    REFUSED(dtrain_step_feed(b.fed, 0, other), "stream 0 has made no step");
    REFUSED(dtrain_step_feed(b.fed, S, other), "stream 3");
    REFUSED(dtrain_step_feed(b.fed, 0, NULL), "targets");
    FINE(dtrain_step_feed(b.plain, 0, other));
    for (int t = 0; t < T - 2; t++) {
        if (t == 1)
            save(&b, 0); // fewer steps have been played than are fed back
        if (t == 4) {    // another action was played
            FINE(dtrain_step_feed(b.fed, 2, other));
            memcpy(b.history[2].drawn[b.history[2].steps - 1], other, sizeof other);
            REFUSED(dtrain_step_feed(b.fed, 2, (const float[W]){NAN}), "target 0 of stream 2");
        }
        if (t == 6) {
            FINE(dtrain_step_reset(b.fed, 1));
            FINE(dtrain_step_reset(b.plain, 1));
            b.history[1].steps = 0;
        }
        if (t == 8)
            restore(&b, 2);
        if (t == 10)
            save(&b, 1);
        if (t == 12)
            check_failed_step(b.fed, &b.info, 0, feed_at(&b.info, 0, t), 0);
        if (t == 14)
            step_without_draw(&b, t);
        if (t == 17)
            restore(&b, 0);
        step_all(&b, t, t % 3);
    }
    int64_t at = b.info.state_bytes - DEEP * W * 4 - 8, steps;
    FINE(dtrain_step_save(b.fed, 0, b.blocks[0], (size_t)b.info.state_bytes));
    memcpy(&steps, b.blocks[0] + at, sizeof steps);
    CHECK_INT(steps, DEEP);
    for (int i = 0; i < 2; i++)
        free(b.blocks[i]);
    dtrain_step_close(b.fed);
    dtrain_step_close(b.plain);
    free_model(&fed);
    free_model(&b.folder);
}

static int open_named(const char *text, const char *targets)
{
    struct model_folder folder = {.config = small_config("gru", policy)};
    dtrain_step *handle = NULL;
    snprintf(folder.config.inputs, sizeof folder.config.inputs, "%s", text);
    snprintf(folder.config.targets, sizeof folder.config.targets, "%s", targets);
    write_model(&folder, "named");
    int code = dtrain_step_open(folder.path, NULL, &handle);
    dtrain_step_close(handle);
    free_model(&folder);
    return code;
}

static void refused(const char *text, const char *targets)
{
    REFUSED(open_named(text, targets), "not the 19 numbers and 2 ids of a frame and the 8 targets");
}

static void check_fed(const char *from, const char *to, const char *want)
{
    static const char *const arrays[] = {"frames", "ids", "flag"};
    struct dt_fed fed[DT_FED_MOST];
    char text[1024] = "";
    int n;
    CHECK_OK(dt_columns_fed(from, to, &n, fed));
    for (int i = 0; i < n; i++)
        dt_append(text, sizeof text, "%s%s %lld+%lld*%lld = %lld..%lld from %lld", i ? ", " : "",
                  arrays[fed[i].array], (long long)fed[i].at, (long long)fed[i].step,
                  (long long)fed[i].count, (long long)fed[i].target,
                  (long long)(fed[i].target + fed[i].n), (long long)fed[i].back);
    CHECK_STR(text, want);
}

// Checks which inputs count as earlier targets.
static void test_columns(void)
{
    check_fed("a[0:3] t[0:3]@-1", "t[0:3]", "frames 3+3*1 = 0..3 from 1");
    check_fed("t[2:3]@-1 a[0:3]", "u[0:1] t[0:4]", "frames 0+1*1 = 3..4 from 1");
    check_fed("a[0:2]@-1 t[0:1]@1", "t[0:3]", "");
    check_fed("t[0:2]@-2:3 a[0:2]", "t[0:2]", "frames 0+2*2 = 0..2 from 2");
    check_fed("t[0:2]@-1", "t[0:2]@18", "frames 0+2*1 = 0..2 from 19");
    check_fed("t[0:2]@-1", "t[0:2]@0:8", "frames 0+2*1 = 0..2 from 1");
    check_fed("u[0:1]@-1 t[1:2]@-1", "t[0:2] u[0:1] t[0:2]@+1 u[0:1]@+1",
              "frames 0+1*1 = 2..3 from 1, frames 1+1*1 = 1..2 from 1");
    check_fed("x[0:1]:id*4@-2:0:valid t[1:2]:id*9@-2:0:valid y[0:1]", "t[0:2]",
              "ids 2+1*2 = 1..2 from 2, flag 2+1*2 = 1..2 from 2");
    check_fed("t[0:2]@-1:valid t[1:4]@-1", "t[0:1] t[3:4]",
              "frames 0+3*1 = 0..1 from 1, flag 2+3*1 = 0..1 from 1, frames 5+3*1 = 1..2 from 1");
    check_fed("t@-1", "t", "");
    check_fed("", "", "");
}

int main(void)
{
    make_scratch();
    test_columns();
    for (int32_t weights = DTRAIN_STEP_FP32; weights <= DTRAIN_STEP_INT8; weights++) {
        test_feedback("mamba gru", false, weights);
        test_feedback("attention mlp", true, weights);
    }
    refused("a[0:18] t[0:2]@-1", "t[0:8]");
    refused("a[0:10] t[0:2]@-6:-1", "t[0:8]");
    refused("t[0:1]:id*7@-3:0", "t[0:8]");
    refused("t[7:9]@-1", "t[0:9]");
    refused("a[0:17] t[0:2]@-65537", "t[0:8]");
    // The largest number of steps that are remembered.
    FINE(open_named("a[0:17] t[0:2]@-65536", "t[0:8]"));
    remove_scratch();
    return test_end();
}
