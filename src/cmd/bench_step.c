// `dtrain bench --step`: tokens a second of whole training steps, in one process with all its
// threads, and the most memory that the process ever had.
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2, LEAST = 3, STATUS_BYTES = 1 << 16 };
static const double default_seconds = 5;

// The kernel's own mark of the most that this process had resident, in MiB.
static dt_status peak_memory(double *mb)
{
    static const char path[] = "/proc/self/status", field[] = "VmHWM:";
    char *text;
    int64_t size;
    DT_TRY(dt_read_file(path, STATUS_BYTES, &text, &size));
    const char *line = strstr(text, field);
    *mb = line ? strtod(line + sizeof field - 1, NULL) / 1024 : 0; // the file counts in kB
    free(text);
    return line ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "%s has no %s", path, field);
}

static dt_status measure(struct dt_bench_rig *rig, double seconds, struct dt_bench_clock *clock)
{
    for (int i = 0; i < WARM_UP; i++) {
        DT_TRY(dt_bench_rig_draw(rig));
        DT_TRY(dt_bench_rig_step(rig));
    }
    dt_bench_start(clock);
    while (dt_bench_more(clock, LEAST, seconds)) {
        DT_TRY(dt_bench_rig_draw(rig));
        double start = dt_seconds();
        DT_TRY(dt_bench_rig_step(rig));
        dt_bench_note(clock, dt_seconds() - start);
    }
    return DT_OK;
}

static void print_json(const struct dt_bench_rig *rig, const struct dt_bench_clock *clock,
                       double tokens_per_s, double gflops, double peak_mb, double loss)
{
    static const char *const recompute[] = {"none", "scan", "block"};
    const struct dt_model_config *c = dt_model_config(rig->model);
    printf("{\"bench\":\"step\",\"d_model\":%lld,\"n_layer\":%lld,\"vocab\":%lld,\"d_state\":%lld,"
           "\"seq_len\":%lld,\"batch\":%lld,\"micro_batch\":%lld,\"recompute\":\"%s\","
           "\"precision\":\"%s\",\"threads\":%d,\"steps\":%lld,\"step_ms\":%.4f,"
           "\"best_step_ms\":%.4f,\"tokens_per_s\":%.1f,\"gflops\":%.2f,\"peak_memory_mb\":%.1f,"
           "\"loss\":%.9g}\n",
           (long long)c->d_model, (long long)c->n_layer, (long long)c->vocab_size,
           (long long)c->d_state, (long long)rig->length, (long long)rig->batch,
           (long long)rig->micro, recompute[c->recompute], dt_dtype_name(c->storage),
           rig->info.threads, (long long)clock->n, dt_bench_median(clock) * 1e3,
           dt_bench_best(clock) * 1e3, tokens_per_s, gflops, peak_mb, loss);
}

static dt_status report(const struct dt_bench_rig *rig, const struct dt_bench_clock *clock,
                        bool json)
{
    struct dt_update_control control;
    double peak_mb, median = dt_bench_median(clock);
    const struct dt_model_config *c = dt_model_config(rig->model);
    double tokens_per_s = (double)rig->batch * (double)rig->length / median;
    double gflops = dt_model_flops_per_token(c) * tokens_per_s / 1e9;
    DT_TRY(dt_optimizer_read(&rig->optimizer, &control));
    DT_TRY(peak_memory(&peak_mb));
    if (json)
        print_json(rig, clock, tokens_per_s, gflops, peak_mb, control.loss);
    else
        printf("%s, %d threads: %lld steps of %lld x %lld tokens, %.1f ms (best %.1f), %.0f "
               "tokens/s, %.1f GFLOP/s, at most %.0f MiB, loss %.4f\n",
               dt_dtype_name(c->storage), rig->info.threads, (long long)clock->n,
               (long long)rig->batch, (long long)rig->length, median * 1e3,
               dt_bench_best(clock) * 1e3, tokens_per_s, gflops, peak_mb, control.loss);
    return DT_OK;
}

dt_status dt_bench_step(const struct dt_bench_options *options)
{
    struct dt_bench_rig rig;
    struct dt_bench_clock clock;
    DT_TRY(dt_bench_rig_open(options, NULL, &rig));
    dt_status status =
        measure(&rig, options->seconds > 0 ? options->seconds : default_seconds, &clock);
    if (status == DT_OK)
        status = report(&rig, &clock, options->json);
    dt_bench_rig_close(&rig);
    return status;
}
