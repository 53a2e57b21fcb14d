// A model in training on synthetic tokens in one process: the loader, the stepper and the settings
// of a run with data.train = synthetic:random, and no run folder.
#include "bench/bench.h"

#include "job/device.h"
#include "job/job.h"
#include "train/memory.h"

#include <stdlib.h>

// Of a run whose configuration does not say otherwise.
enum { SEED = 1337, BLOCK = 64, PREFETCH = 2, BUCKET_BYTES = 25000000 };

static dt_status open_backend(const struct dt_bench_options *options, dt_bench_wrap wrap,
                              struct dt_bench_rig *rig)
{
    DT_TRY(dt_device_open_alone((int)options->device, (int)options->threads, &rig->backend));
    DT_TRY(dt_backend_info(&rig->backend, &rig->info));
    if (options->cuda_graph == DT_TOGGLE_TRUE && !rig->backend.table->graphs)
        return DT_FAIL(DT_USER, "leave it out", "--cuda-graph true: the device %s has no graphs",
                       rig->backend.table->name);
    if (wrap)
        rig->backend.op = wrap(rig->backend.op);
    return DT_OK;
}

static struct dt_model_config model_config(const struct dt_bench_options *options,
                                           const struct dt_device_info *info)
{
    bool bf16 = options->precision == DT_PRECISION_BF16 ||
                (options->precision == DT_PRECISION_AUTO && info->bf16_faster);
    return (struct dt_model_config){.d_model = options->d_model,
                                    .n_layer = options->n_layer,
                                    .vocab_size = options->vocab,
                                    .d_state = options->d_state,
                                    .d_conv = 4,
                                    .expand = 2,
                                    .norm_eps = 1e-5,
                                    .tie_embeddings = true,
                                    .pad_vocab_multiple = 8,
                                    .recompute = (enum dt_recompute)options->recompute,
                                    .storage = bf16 ? DT_BF16 : DT_F32};
}

static struct dt_stepper_config stepper_config(const struct dt_bench_options *options,
                                               const struct dt_bench_rig *rig)
{
    return (struct dt_stepper_config){
        .comm = rig->comm,
        .batch = {.sequences = rig->batch, .length = rig->length, .micro = rig->micro},
        .tokens = rig->batch * rig->length,
        .optimizer =
            {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_clip = 1.0f},
        .bucket_bytes = BUCKET_BYTES,
        .wire = DT_F32,
        .graphs = options->cuda_graph != DT_TOGGLE_FALSE};
}

static struct dt_loader_config loader_config(const struct dt_bench_options *options,
                                             const struct dt_bench_rig *rig)
{
    struct dt_loader_config config = {
        .dataset = rig->dataset,
        .rules = {.seed = SEED, .vocab_size = options->vocab, .reset_token = -1},
        .batch = rig->batch,
        .block = BLOCK,
        .shuffle = true,
        .size = 1,
        .prefetch = PREFETCH};
    dt_job_pin_ring(&rig->backend, &config);
    return config;
}

static dt_status check_memory(const struct dt_bench_rig *rig, const struct dt_memory_plan *plan)
{
    int64_t planned = dt_memory_plan_bytes(plan, false);
    if (rig->backend.table->unified || planned <= rig->info.memory_free)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, "give a smaller --batch or --micro-batch, or --recompute block",
                   "the step needs %.1f GiB of device memory, and %s has %.1f GiB free",
                   (double)planned / 0x1p30, rig->info.name,
                   (double)rig->info.memory_free / 0x1p30);
}

static dt_status draw_weights(const struct dt_bench_rig *rig)
{
    struct dt_snapshot snapshot;
    dt_status status = dt_snapshot_create(&rig->backend, rig->model, NULL, true, &snapshot);
    if (status == DT_OK) {
        dt_params_init(snapshot.host.params, SEED, snapshot.host.weights);
        status = dt_snapshot_share_weights(&snapshot, rig->comm);
    }
    dt_snapshot_destroy(&snapshot);
    return status;
}

dt_status dt_bench_rig_choose(struct dt_bench_rig *rig)
{
    const struct dt_device_table *table = rig->backend.table;
    char *text = NULL;
    if (!table->choose)
        return DT_OK;
    DT_TRY(table->choose(rig->backend.device, rig->algorithms, &text));
    free(rig->algorithms);
    rig->algorithms = text;
    return DT_OK;
}

// As in training: memory is planned and checked, then algorithms are chosen for the shapes of the
// plan, then all is created.
static dt_status rig_open(const struct dt_bench_options *options, dt_bench_wrap wrap,
                          struct dt_bench_rig *rig)
{
    struct dt_memory_plan plan = {0};
    struct dt_model_shape shape = {
        .sequences = rig->micro, .length = rig->length, .training = true};
    DT_TRY(dt_comm_open(DT_COMM_KIND_SELF, &rig->comm));
    DT_TRY(open_backend(options, wrap, rig));
    DT_TRY(dt_dataset_scan("synthetic:random", rig->length, options->vocab, &rig->dataset));
    struct dt_model_config model = model_config(options, &rig->info);
    DT_TRY(dt_model_config_check(&model));
    struct dt_stepper_config stepper = stepper_config(options, rig);
    struct dt_loader_config loader = loader_config(options, rig);
    DT_TRY(dt_training_memory(&rig->backend, &model, &shape, &stepper, &loader, &plan));
    DT_TRY(check_memory(rig, &plan));
    if (options->gemm == DT_BENCH_GEMM_TIMED)
        DT_TRY(dt_bench_rig_choose(rig));
    DT_TRY(dt_model_create(&rig->backend, &model, &shape, &rig->model));
    DT_TRY(dt_stepper_create(&rig->backend, rig->model, &stepper, &rig->stepper));
    DT_TRY(dt_stepper_connect(rig->stepper));
    DT_TRY(draw_weights(rig));
    DT_TRY(dt_loader_open(&loader, 0, &rig->loader));
    if (!wrap)
        return DT_OK;
    int64_t bytes = dt_model_params(rig->model)->elements * (int64_t)sizeof *rig->spare;
    return dt_alloc(&rig->backend, bytes, &rig->spare);
}

dt_status dt_bench_rig_open(const struct dt_bench_options *options, dt_bench_wrap wrap,
                            struct dt_bench_rig *rig)
{
    *rig = (struct dt_bench_rig){.batch = options->batch,
                                 .micro = options->micro_batch > 0 ? options->micro_batch
                                                                   : options->batch,
                                 .length = options->seq_len};
    dt_status status = rig_open(options, wrap, rig);
    if (status != DT_OK)
        dt_bench_rig_close(rig);
    return status;
}

void dt_bench_rig_close(struct dt_bench_rig *rig)
{
    dt_stepper_destroy(rig->stepper); // first: a step in flight may read the loader's memory
    dt_loader_close(rig->loader);
    dt_dataset_free(rig->dataset);
    if (rig->spare)
        dt_free(&rig->backend, rig->spare);
    dt_model_destroy(rig->model);
    if (rig->backend.table)
        dt_backend_close(&rig->backend);
    dt_comm_close(rig->comm);
    free(rig->algorithms);
    *rig = (struct dt_bench_rig){0};
}

dt_status dt_bench_rig_launch(struct dt_bench_rig *rig)
{
    return dt_stepper_launch(rig->stepper, rig->loader, ++rig->steps, DT_BENCH_LEARNING_RATE);
}
