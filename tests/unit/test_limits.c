// Tests how `dtrain bench` measures the limits of a device, where the ops take known times: the
// clock of this program advances only in them. Also tests the time of a step that --check
// estimates, where the clock advances by a second whenever it is read.
#include "bench/ops.h"
#include "job/job.h"

#include "small_model.h"

#include <time.h>

static const double copy_s = 5e-3, round_s = 1e-4;
static double now = 1, look_s;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    now += look_s;
    *t = (struct timespec){(time_t)now, (long)(1e9 * (now - (double)(time_t)now))};
    return 0;
}

static dt_status small_memory(struct dt_device *device, struct dt_device_info *info)
{
    dt_status status = dt_cpu_device_table.info(device, info);
    info->memory_free = 32 << 20;
    return status;
}

static dt_status slow_copy(struct dt_device *device, void *to, const void *from, int64_t bytes,
                           struct dt_stream *stream)
{
    (void)device, (void)stream;
    memcpy(to, from, (size_t)bytes);
    now += copy_s;
    return DT_OK;
}

// Each kind of round takes twice as long as the one before.
static dt_status slow_spin(struct dt_device *device, const struct dt_spin_args *a,
                           struct dt_stream *stream)
{
    (void)device, (void)stream;
    now += round_s * (double)a->rounds * (1 << a->kind);
    return DT_OK;
}

// The median of an even number of times is the mean of the two in the middle.
static void check_medians(void)
{
    double times[] = {10, 1, 3, 2, 7};
    CHECK_NEAR(dt_bench_median_of(times, 4), 2.5, 0); // the call sorts the times
    CHECK_NEAR(dt_bench_median_of(times, 5), 3, 0);
    CHECK_NEAR(dt_bench_median_of(times, 1), 1, 0);
    CHECK_NEAR(dt_bench_median_of(times, 0), 0, 0);
}

// Returns the estimated seconds of a step of a rank that runs `sequences` of its sequences of
// `length` tokens, two at a time, in segments of `segment` positions (0: in whole windows). The
// timed steps have `timed` tokens.
static double estimate(const struct small_model *model, int64_t length, int64_t sequences,
                       int64_t segment, int64_t timed)
{
    struct dt_job job = {.model = model->config,
                         .local_batch = sequences,
                         .micro_batch = 2,
                         .settings.data = {.seq_len = length, .batch = 12}};
    double seconds = 0;
    int64_t tokens = 0;
    job.model.segment = segment;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &job.backend));
    CHECK_OK(dt_bench_estimate(&job, &seconds, &tokens));
    CHECK_INT(tokens, timed);
    dt_backend_close(&job.backend);
    return seconds;
}

static void check_estimates(void)
{
    struct small_model model = small_model_make(true);
    look_s = 1;
    double micro_batch = estimate(&model, 64, 2, 0, 128);
    CHECK(micro_batch >= 1, "a micro-batch takes %g s", micro_batch);
    CHECK_NEAR(estimate(&model, 64, 12, 0, 128), 6 * micro_batch, 1e-9);
    CHECK_NEAR(estimate(&model, 64, 4, 0, 128), 2 * micro_batch, 1e-9);        // one of three ranks
    CHECK_NEAR(estimate(&model, 64, 2, 32, 128), 4.0 / 3 * micro_batch, 1e-9); // forward runs twice
    // A step of fewer sequences, and one of a shorter window.
    dt_bench_step_flops = 100.5 * dt_model_flops_per_token(&model.config);
    CHECK_NEAR(estimate(&model, 64, 2, 0, 64), 2 * micro_batch, 1e-9);
    CHECK_NEAR(estimate(&model, 256, 2, 0, 100), 5.12 * micro_batch, 1e-9);
    look_s = 0;
    small_model_free(&model);
}

int main(void)
{
    check_medians();
    check_estimates();
    struct dt_device_table table = dt_cpu_device_table;
    struct dt_op_table op = dt_cpu_op_table;
    struct dt_bench_rig rig = {0};
    table.info = small_memory;
    table.copy = slow_copy;
    op.spin = slow_spin;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &rig.backend));
    rig.backend.table = &table;
    rig.backend.op = &op;
    struct dt_bench_machine m = {.backend = &rig.backend};
    CHECK_OK(dt_op_times_create(&rig.backend, NULL, &m.times));
    CHECK_OK(dt_bench_machine_measure_device(&rig, 0.1, &m));
    const double values = 1 << 20;                            // numbers in arrays of 4 MiB
    CHECK_NEAR(m.limits.copy, 2 * 4 * values / copy_s, 1e-5); // each number is read and written
    CHECK_NEAR(m.limits.exps, values / round_s, 1e-5);
    CHECK_NEAR(m.limits.exp2s, values / round_s / 2, 1e-5);
    CHECK_NEAR(m.limits.lanes, values / round_s / 4, 1e-5);
    dt_free(&rig.backend, m.from);
    dt_free(&rig.backend, m.to);
    dt_op_times_destroy(m.times);
    dt_backend_close(&rig.backend);
    return test_end();
}
