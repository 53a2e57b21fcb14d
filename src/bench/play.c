// `dtrain bench --play` measures an inference step, one position of one stream, by the player of
// `dtrain sample` and libdtrain_step. Weights are random, since the time of a step does not depend
// on them.
#include "bench/bench.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"
#include "job/device.h"
#include "play/player.h"

#include <stdio.h>

enum { STEPS = 50, LEAST = 3 }; // steps per repeat, long enough for the clock
static const double default_seconds = 1;

struct playing {
    struct dt_backend backend;
    struct dt_model_config model;
    struct dt_player *player;
    struct dt_play_info info;
    struct dt_params params;
    float *weights, *frame, *predicted;
    struct dt_bench_clock clock;
};

static dt_status playing_open(const struct dt_bench_options *options, struct playing *p)
{
    const struct dt_player_config config = {.streams = 1,
                                            .length = 1,
                                            .weights = options->int8 ? DT_PLAY_INT8
                                                       : options->precision == DT_PRECISION_BF16
                                                           ? DT_PLAY_BF16
                                                           : DT_PLAY_F32};
    struct dt_philox rng = dt_philox_init(1, 0, 0);
    int threads = options->threads > 0 ? (int)options->threads : 1;
    DT_TRY(dt_device_open_alone(DT_DEVICE_CPU, threads, &p->backend));
    DT_TRY(dt_bench_model(options, &p->model));
    DT_TRY(dt_model_list(&p->model, &p->params, NULL));
    DT_TRY(dt_player_create(&p->backend, &p->model, &config, &p->player));
    dt_player_info(p->player, &p->info);
    DT_TRY(DT_NEW(&p->weights, p->params.elements, "the weights of a model"));
    DT_TRY(DT_NEW(&p->frame, p->info.frame, "a frame"));
    DT_TRY(DT_NEW(&p->predicted, p->info.values, "predicted values"));
    for (int64_t i = 0; i < p->info.frame; i++)
        p->frame[i] = dt_philox_normal(&rng);
    dt_params_init(&p->params, 1, p->weights);
    return dt_player_set_weights(p->player, p->weights);
}

static void print(const struct dt_bench_options *options, const struct playing *p)
{
    double median = dt_bench_median(&p->clock) * 1e6, best = dt_bench_best(&p->clock) * 1e6,
           mb = (double)dt_model_weight_bytes(dt_player_model(p->player)) / 1e6;
    const char *weights = p->info.weights == DT_PLAY_INT8   ? "int8"
                          : p->info.weights == DT_PLAY_BF16 ? "bf16"
                                                            : "fp32";
    if (options->json)
        printf("{\"bench\":\"play\",\"layers\":\"%s\",\"d_model\":%lld,\"weights\":\"%s\","
               "\"parameters\":%lld,\"model_mb\":%.3f,\"state_bytes\":%lld,\"step_us\":%.3f,"
               "\"best_step_us\":%.3f}\n",
               p->model.layers, (long long)p->model.d_model, weights, (long long)p->params.count,
               mb, (long long)p->info.state, median, best);
    else
        dt_print_line(
            "%s, %s weights: %.1f us per playing step (best %.1f), %.2f MB of weights, state of a "
            "stream %lld bytes",
            p->model.layers, weights, median, best, mb, (long long)p->info.state);
}

dt_status dt_bench_play(const struct dt_bench_options *options)
{
    struct playing *p;
    DT_TRY(DT_NEW(&p, 1, "a list of times"));
    const int32_t token = 0;
    double seconds = options->seconds > 0 ? options->seconds : default_seconds;
    dt_status status = playing_open(options, p);
    const struct dt_play play = {.n = 1,
                                 .length = 1,
                                 .frames = p->info.vocab > 0 ? NULL : p->frame,
                                 .ids = p->info.vocab > 0 ? &token : NULL,
                                 .predicted = p->predicted};
    dt_bench_start(&p->clock);
    while (status == DT_OK && dt_bench_more(&p->clock, LEAST, seconds)) {
        double start = dt_seconds();
        for (int i = 0; i < STEPS && status == DT_OK; i++)
            status = dt_player_step(p->player, &play);
        dt_bench_note(&p->clock, (dt_seconds() - start) / STEPS);
    }
    if (status == DT_OK)
        print(options, p);
    dt_player_close(p->player);
    dt_params_free(&p->params);
    if (p->backend.table)
        dt_backend_close(&p->backend);
    free(p->weights);
    free(p->frame);
    free(p->predicted);
    free(p);
    return status;
}
