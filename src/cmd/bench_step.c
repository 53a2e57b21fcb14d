// `dtrain bench --step`: tokens a second of whole training steps, in one process with all its
// threads, and the most memory that it ever had: of the device, whose memory is planned and taken
// before the first step; else of the process.
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2, LEAST = 3, STATUS_BYTES = 1 << 16 };
static const double default_seconds = 5;

// The kernel's own mark of the most that this process had resident, in MiB.
static dt_status peak_resident(double *mb)
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

static dt_status peak_memory(const struct dt_backend *backend, double *mb)
{
    if (backend->table->unified)
        return peak_resident(mb);
    *mb = (double)backend->table->memory_in_use(backend->device) / 0x1p20;
    return DT_OK;
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

// What is told of the steps.
struct figures {
    double tokens_per_s, gflops, peak_mb, loss;
    double mfu; // of the datasheet's rate; 0: not known
};

static dt_status take_figures(const struct dt_bench_rig *rig, const struct dt_bench_clock *clock,
                              struct figures *f)
{
    struct dt_update_control control;
    const struct dt_model_config *c = dt_model_config(rig->model);
    bool rated = rig->info.peak_flops > 0 && c->storage == DT_BF16;
    DT_TRY(dt_optimizer_read(&rig->optimizer, &control));
    DT_TRY(peak_memory(&rig->backend, &f->peak_mb));
    f->loss = control.loss;
    f->tokens_per_s = (double)rig->batch * (double)rig->length / dt_bench_median(clock);
    f->gflops = dt_model_flops_per_token(c) * f->tokens_per_s / 1e9;
    f->mfu = rated ? f->gflops * 1e9 / rig->info.peak_flops : 0;
    return DT_OK;
}

static void print_json(const struct dt_bench_rig *rig, const struct dt_bench_clock *clock,
                       const struct figures *f)
{
    static const char *const recompute[] = {"none", "scan", "block"};
    const struct dt_model_config *c = dt_model_config(rig->model);
    printf("{\"bench\":\"step\",\"device\":\"%s\",\"name\":\"%s\",\"d_model\":%lld,"
           "\"n_layer\":%lld,\"vocab\":%lld,\"d_state\":%lld,\"seq_len\":%lld,\"batch\":%lld,"
           "\"micro_batch\":%lld,\"recompute\":\"%s\",\"precision\":\"%s\",\"threads\":%d,"
           "\"steps\":%lld,\"step_ms\":%.4f,\"best_step_ms\":%.4f,\"tokens_per_s\":%.1f,"
           "\"gflops\":%.2f,\"mfu\":%.4f,\"peak_memory_mb\":%.1f,\"loss\":%.9g}\n",
           rig->backend.table->name, rig->info.name, (long long)c->d_model, (long long)c->n_layer,
           (long long)c->vocab_size, (long long)c->d_state, (long long)rig->length,
           (long long)rig->batch, (long long)rig->micro, recompute[c->recompute],
           dt_dtype_name(c->storage), rig->info.threads, (long long)clock->n,
           dt_bench_median(clock) * 1e3, dt_bench_best(clock) * 1e3, f->tokens_per_s, f->gflops,
           f->mfu, f->peak_mb, f->loss);
}

static void print_line(const struct dt_bench_rig *rig, const struct dt_bench_clock *clock,
                       const struct figures *f)
{
    char where[160], mfu[32] = "";
    if (rig->backend.table->unified)
        snprintf(where, sizeof where, "%d threads", rig->info.threads);
    else
        snprintf(where, sizeof where, "%s", rig->info.name);
    if (f->mfu > 0)
        snprintf(mfu, sizeof mfu, " (MFU %.1f %%)", f->mfu * 100);
    printf("%s, %s: %lld steps of %lld x %lld tokens, %.1f ms (best %.1f), %.0f tokens/s, %.1f "
           "GFLOP/s%s, at most %.0f MiB, loss %.4f\n",
           dt_dtype_name(dt_model_config(rig->model)->storage), where, (long long)clock->n,
           (long long)rig->batch, (long long)rig->length, dt_bench_median(clock) * 1e3,
           dt_bench_best(clock) * 1e3, f->tokens_per_s, f->gflops, mfu, f->peak_mb, f->loss);
}

dt_status dt_bench_step(const struct dt_bench_options *options)
{
    struct dt_bench_rig rig;
    struct dt_bench_clock clock;
    struct figures figures;
    DT_TRY(dt_bench_rig_open(options, NULL, &rig));
    dt_status status =
        measure(&rig, options->seconds > 0 ? options->seconds : default_seconds, &clock);
    if (status == DT_OK)
        status = take_figures(&rig, &clock, &figures);
    if (status == DT_OK)
        (options->json ? print_json : print_line)(&rig, &clock, &figures);
    dt_bench_rig_close(&rig);
    return status;
}
