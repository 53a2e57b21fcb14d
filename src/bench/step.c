// `dtrain bench --step` measures whole training steps (train/step.h) in one process with all its
// threads: their time, the waits of device and host, and the peak memory of the process (on a
// device, the memory allocated before the first step).
#include "bench/bench.h"

#include "base/file.h"
#include "base/round.h"
#include "base/text.h"
#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 3, LEAST = 3 };
static const double default_seconds = 5;

// The device's memory in use, or the peak resident memory of this process, in MiB.
static dt_status peak_memory(const struct dt_backend *backend, double *mb)
{
    static const char path[] = "/proc/self/status", field[] = "VmHWM";
    char kilobytes[64];
    if (!backend->table->unified) {
        *mb = (double)dt_memory_in_use(backend) / 0x1p20;
        return DT_OK;
    }
    dt_proc_value(path, field, kilobytes, sizeof kilobytes);
    *mb = strtod(kilobytes, NULL) / 1024;
    return kilobytes[0] ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "%s has no %s:", path, field);
}

// Results of the steps.
struct figures {
    struct dt_bench_clock clock;                // steps after the first WARM_UP
    double idle_ms, host_wait_ms, data_wait_ms; // sums over these steps; then means
    int64_t collected;                          // all steps
    struct dt_step_result last;
    double tokens_per_s, gflops, peak_mb;
    double mfu; // of the data sheet's rate; 0: unknown
};

static dt_status collect(struct dt_bench_rig *rig, struct figures *f)
{
    struct dt_step_result *step = &f->last;
    DT_TRY(dt_stepper_collect(rig->stepper, step));
    if (++f->collected <= WARM_UP) {
        dt_bench_start(&f->clock);
        return DT_OK;
    }
    dt_bench_note(&f->clock, step->seconds);
    f->idle_ms += step->idle_ms;
    f->host_wait_ms += step->host_wait_ms;
    f->data_wait_ms += step->data_wait_ms;
    return DT_OK;
}

static dt_status measure(struct dt_bench_rig *rig, double seconds, struct figures *f)
{
    int keep = dt_stepper_depth(rig->stepper) - 1;
    dt_bench_start(&f->clock);
    while (dt_bench_more(&f->clock, LEAST, seconds)) {
        DT_TRY(dt_bench_rig_launch(rig));
        while (dt_stepper_in_flight(rig->stepper) > keep)
            DT_TRY(collect(rig, f));
    }
    while (dt_stepper_in_flight(rig->stepper) > 0)
        DT_TRY(collect(rig, f));
    const struct dt_model_config *c = dt_model_config(rig->model);
    bool rated = rig->info.peak_flops > 0 && c->storage == DT_BF16;
    double measured = (double)f->clock.n;
    f->tokens_per_s = (double)rig->batch * (double)rig->length / dt_bench_median(&f->clock);
    f->gflops = dt_model_flops_per_token(c) * f->tokens_per_s / 1e9;
    f->mfu = rated ? f->gflops * 1e9 / rig->info.peak_flops : 0;
    f->idle_ms /= measured;
    f->host_wait_ms /= measured;
    f->data_wait_ms /= measured;
    return peak_memory(&rig->backend, &f->peak_mb);
}

static void print(const struct dt_bench_rig *rig, const struct figures *f, bool json)
{
    const struct dt_model_config *c = dt_model_config(rig->model);
    double ms = dt_bench_median(&f->clock) * 1e3, best_ms = dt_bench_best(&f->clock) * 1e3;
    long long batch = rig->batch, length = rig->length, steps = f->clock.n;
    char where[160], mfu[32] = "";
    if (json) {
        printf("{\"bench\":\"step\",\"device\":\"%s\",\"name\":\"%s\",\"d_model\":%lld,"
               "\"n_layer\":%lld,\"vocab\":%lld,\"d_state\":%lld,\"seq_len\":%lld,\"batch\":%lld,"
               "\"micro_batch\":%lld,\"recompute\":\"%s\",\"precision\":\"%s\",\"threads\":%d,"
               "\"steps\":%lld,\"step_ms\":%.4f,\"best_step_ms\":%.4f,\"tokens_per_s\":%.1f,"
               "\"gflops\":%.2f,\"mfu\":%.4f,\"peak_memory_mb\":%.1f,",
               rig->backend.table->name, rig->info.name, (long long)c->d_model,
               (long long)c->n_layer, (long long)c->vocab_size,
               (long long)*(int64_t *)dt_model_field(c, "d_state"), length, batch,
               (long long)rig->micro, dt_recompute_name[c->recompute], dt_dtype_name(c->storage),
               rig->info.threads, steps, ms, best_ms, f->tokens_per_s, f->gflops, f->mfu,
               f->peak_mb);
        printf("\"idle_ms\":%.4f,\"host_wait_ms\":%.4f,\"data_wait_ms\":%.4f,\"graphs\":%d,"
               "\"last_step\":%lld,\"loss\":%.9g}\n",
               f->idle_ms, f->host_wait_ms, f->data_wait_ms, f->last.graphs,
               (long long)f->collected, f->last.control.loss);
        return;
    }
    if (rig->backend.table->unified)
        snprintf(where, sizeof where, "%d threads", rig->info.threads);
    else
        snprintf(where, sizeof where, "%s, %s", rig->info.name,
                 f->last.graphs > 0 ? "graphs" : "no graphs");
    if (f->mfu > 0)
        snprintf(mfu, sizeof mfu, " (MFU %.1f %%)", f->mfu * 100);
    dt_print_line(
        "%s, %s: %lld steps of %lld x %lld tokens, %.1f ms (best %.1f), %.0f tokens/s, %.1f "
        "GFLOP/s%s, peak %.0f MiB; per step: device idle %.3f ms, host idle %.3f ms, waiting "
        "for data %.3f ms; loss %.4f",
        dt_dtype_name(c->storage), where, steps, batch, length, ms, best_ms, f->tokens_per_s,
        f->gflops, mfu, f->peak_mb, f->idle_ms, f->host_wait_ms, f->data_wait_ms,
        f->last.control.loss);
}

dt_status dt_bench_step(const struct dt_bench_options *options)
{
    struct dt_bench_rig rig;
    struct figures figures = {0};
    DT_TRY(dt_bench_rig_open(options, false, &rig));
    dt_status status =
        measure(&rig, options->seconds > 0 ? options->seconds : default_seconds, &figures);
    if (status == DT_OK)
        print(&rig, &figures, options->json);
    dt_bench_rig_close(&rig);
    return status;
}

double dt_bench_step_flops = 2e10;

dt_status dt_bench_estimate(const struct dt_job *job, double *seconds, int64_t *tokens)
{
    enum { STEPS = 3, LEAST_LENGTH = 64 };
    const struct dt_model_config *model = &job->model;
    int64_t length = job->settings.data.seq_len,
            most = (int64_t)(dt_bench_step_flops / dt_model_flops_per_token(model));
    struct dt_device_info info;
    struct dt_bench_rig rig;
    struct dt_step_result result = {0};
    DT_TRY(dt_backend_info(&job->backend, &info));
    length = dt_min_i64(length, dt_max_i64(most, LEAST_LENGTH));
    struct dt_bench_options options = {
        .heads = model->frame_size > 0 ? model->heads : NULL,
        .frame_size = model->frame_size,
        .layers = model->layers,
        .d_model = model->d_model,
        .vocab = model->vocab_size,
        .d_state = *(const int64_t *)dt_model_field(model, "d_state"),
        .seq_len = length,
        .batch = dt_min_i64(job->micro_batch, dt_max_i64(most / length, 1)),
        .threads = info.threads,
        .device = DT_DEVICE_CPU,
        .precision = model->storage == DT_BF16 ? DT_PRECISION_BF16 : DT_PRECISION_FP32,
        .recompute = model->recompute};
    DT_TRY(dt_bench_rig_open(&options, false, &rig));
    dt_status status = DT_OK;
    for (int i = 0; i < STEPS && status == DT_OK; i++) { // the first step warms the caches
        status = dt_bench_rig_launch(&rig);
        if (status == DT_OK)
            status = dt_stepper_collect(rig.stepper, &result);
        if (i <= 1 || result.seconds < *seconds)
            *seconds = result.seconds;
    }
    dt_bench_rig_close(&rig);
    *tokens = options.batch * length;
    *seconds *= (double)(job->local_batch * job->settings.data.seq_len) / (double)*tokens;
    if (dt_job_segment(job) < job->settings.data.seq_len) // forward runs twice
        *seconds *= 4.0 / 3;
    return status;
}
