// Calls of libdtrain_step used by both of its tests.
#pragma once

#include "dtrain_step.h"

#include "model_folder.h"

static const char policy[] =
    "buttons:bernoulli*3 x:categorical*5 aim:regression*2@0.5 speed:huber*2";

static inline dtrain_step *open_step(const char *path, int32_t weights, int32_t streams)
{
    const struct dtrain_step_options options = {.weights = weights, .streams = streams};
    dtrain_step *step = NULL;
    char why[1024];
    int code = dtrain_step_open(path, &options, &step);
    dtrain_step_error(why, sizeof why);
    CHECK(code == DTRAIN_STEP_OK && step, "%s: %s", path, why);
    return step;
}

// The input of a stream at one position. It depends on `seed` and the position alone.
struct feed {
    float frame[64];
    int32_t ids[4];
};

static inline struct feed feed_at(const struct dtrain_step_info *info, uint32_t seed, int t)
{
    struct feed feed;
    struct dt_philox rng = dt_philox_init(seed, 1, (uint64_t)t);
    for (int i = 0; i < 64; i++)
        feed.frame[i] = dt_philox_normal(&rng);
    for (int i = 0; i < 4; i++)
        feed.ids[i] = (int32_t)dt_philox_below(&rng, info->vocab_size > 0 ? 37 : 7);
    return feed;
}

// Checks the return code of the calling thread's last call and a part of its message.
static inline void check_says(int code, int want, const char *part, int line)
{
    char why[2048];
    dtrain_step_error(why, sizeof why);
    CHECK(code == want && strstr(why, part), "line %d: code %d, not %d, or \"%s\" is not in: %s",
          line, code, want, part, why);
}
#define FINE(call)             check_says(call, DTRAIN_STEP_OK, "", __LINE__)
#define REFUSED(call, part)    check_says(call, DTRAIN_STEP_USER, part, __LINE__)
#define NOT_FINITE(call, part) check_says(call, DTRAIN_STEP_NOT_FINITE, part, __LINE__)

// A frame whose number `column` is missing, or makes the model overflow, does not change the
// stream.
static inline void check_failed_step(dtrain_step *handle, const struct dtrain_step_info *info,
                                     int32_t stream, struct feed feed, int column)
{
    size_t bytes = (size_t)info->state_bytes;
    char *before = malloc(bytes), *after = malloc(bytes), text[64];
    FINE(dtrain_step_save(handle, stream, before, bytes));
    feed.frame[column] = 3e38f;
    NOT_FINITE(dtrain_step_step(handle, stream, feed.frame, feed.ids, NULL), "");
    feed.frame[column] = NAN;
    snprintf(text, sizeof text, "number %d of the frame", column);
    REFUSED(dtrain_step_step(handle, stream, feed.frame, feed.ids, NULL), text);
    FINE(dtrain_step_save(handle, stream, after, bytes));
    CHECK(memcmp(before, after, bytes) == 0, "a failed step changes the stream");
    free(before);
    free(after);
}

static inline void step(dtrain_step *handle, const struct dtrain_step_info *info, int32_t stream,
                        uint32_t seed, int t, float *outputs)
{
    struct feed feed = feed_at(info, seed, t);
    FINE(dtrain_step_step(handle, stream, feed.frame, feed.ids, outputs));
}
