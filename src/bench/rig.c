// Sets up a model in training on synthetic data in one process, with the loader, the stepper and
// the settings of a run with data.train = synthetic:random, but without a run folder.
#include "bench/bench.h"

#include "job/device.h"
#include "job/job.h"
#include "train/memory.h"

#include <stdio.h>
#include <stdlib.h>

dt_status dt_bench_model(const struct dt_bench_options *options, struct dt_model_config *model)
{
    struct dt_settings s;
    dt_settings_defaults(&s);
    *model = s.model;
    model->d_model = options->d_model;
    model->n_layer = options->layers ? 0 : options->n_layer;
    snprintf(model->layers, sizeof model->layers, "%s", options->layers ? options->layers : "");
    snprintf(model->heads, sizeof model->heads, "%s", options->heads ? options->heads : "");
    model->frame_size = options->heads ? options->frame_size : 0;
    model->vocab_size = options->heads ? 0 : options->vocab;
    *(int64_t *)dt_model_field(model, "d_state") = options->d_state;
    model->recompute = (enum dt_recompute)options->recompute;
    DT_TRY(dt_model_config_resolve(model, options->seq_len)); // as in a fresh run
    return dt_model_config_check(model);
}

// Describes the job of a run that has only these options set. It borrows from the rig.
static dt_status describe(const struct dt_bench_options *options, const struct dt_bench_rig *rig,
                          struct dt_job *job)
{
    struct dt_settings *s = &job->settings;
    bool bf16 = options->precision == DT_PRECISION_BF16 ||
                (options->precision == DT_PRECISION_AUTO && rig->info.bf16_faster);
    *job = (struct dt_job){.comm = rig->comm,
                           .backend = rig->backend,
                           .ranks_on_device = 1,
                           .local_batch = rig->batch,
                           .micro_batch = rig->micro};
    dt_settings_defaults(s);
    s->run.cuda_graph = options->cuda_graph;
    s->data.seq_len = rig->length;
    s->data.batch = rig->batch;
    s->data.block = DT_NEW_BLOCK;
    s->data.normalize = false; // synthetic frames are already normalised
    DT_TRY(dt_bench_model(options, &s->model));
    job->model = s->model;
    job->model.storage = bf16 ? DT_BF16 : DT_F32;
    return dt_job_resolve_buckets(job);
}

static dt_status draw_weights(const struct dt_bench_rig *rig, struct dt_job *job)
{
    struct dt_snapshot snapshot;
    dt_status status = dt_snapshot_create(&rig->backend, rig->model, NULL, true, &snapshot);
    if (status == DT_OK)
        status = dt_job_load_weights(job, "", false, &snapshot);
    dt_snapshot_destroy(&snapshot);
    free(job->mean); // synthetic frames are already normalised
    free(job->deviation);
    return status;
}

// Plans and checks memory as in training, then creates everything.
static dt_status rig_open(const struct dt_bench_options *options, bool times_ops,
                          struct dt_bench_rig *rig)
{
    struct dt_job job;
    DT_TRY(dt_comm_open(DT_COMM_KIND_SELF, &rig->comm));
    DT_TRY(dt_device_open_alone((int)options->device, (int)options->threads, &rig->backend));
    DT_TRY(dt_backend_info(&rig->backend, &rig->info));
    if (options->cuda_graph == DT_TOGGLE_TRUE && !rig->backend.table->graphs)
        return DT_FAIL(DT_USER, "leave it out", "--cuda-graph true: the device %s has no graphs",
                       rig->backend.table->name);
    DT_TRY(describe(options, rig, &job));
    struct dt_scan_rules rules = {.seq_len = rig->length, .vocab_size = options->vocab};
    DT_TRY(dt_job_targets(&job.model, &rules));
    rules.frame_width = options->frame_size;
    DT_TRY(dt_dataset_scan(options->heads ? "synthetic:frames" : "synthetic:random", &rules,
                           &rig->dataset));
    job.train = rig->dataset;
    struct dt_model_shape shape = dt_job_shape(&job, true);
    if (times_ops)
        DT_TRY(dt_op_times_create(&rig->backend, NULL, &rig->times));
    struct dt_stepper_config stepper = dt_job_stepper(&job);
    stepper.times = rig->times;
    struct dt_loader_config loader = dt_job_train_loader(&job);
    dt_job_pin_ring(&rig->backend, &loader);
    DT_TRY_NOTE(dt_job_check_memory(&job), "planning a benchmark, where data.micro_batch is "
                                           "--micro-batch and model.recompute is --recompute");
    DT_TRY(dt_model_create(&rig->backend, &job.model, &shape, &rig->model));
    DT_TRY(dt_stepper_create(&rig->backend, rig->model, &stepper, &rig->stepper));
    DT_TRY(dt_stepper_connect(rig->stepper));
    DT_TRY(draw_weights(rig, &job));
    DT_TRY(dt_loader_open(&loader, 0, &rig->loader));
    if (!times_ops)
        return DT_OK;
    int64_t bytes = dt_model_params(rig->model)->elements * (int64_t)sizeof *rig->spare;
    return dt_alloc(&rig->backend, bytes, &rig->spare);
}

dt_status dt_bench_rig_open(const struct dt_bench_options *options, bool times_ops,
                            struct dt_bench_rig *rig)
{
    *rig = (struct dt_bench_rig){.batch = options->batch,
                                 .micro = options->micro_batch > 0 ? options->micro_batch
                                                                   : options->batch,
                                 .length = options->seq_len};
    dt_status status = rig_open(options, times_ops, rig);
    if (status != DT_OK)
        dt_bench_rig_close(rig);
    return status;
}

void dt_bench_rig_close(struct dt_bench_rig *rig)
{
    dt_stepper_destroy(rig->stepper); // first, since a step in flight may read the loader's memory
    dt_loader_close(rig->loader);
    dt_dataset_free(rig->dataset);
    dt_op_times_destroy(rig->times);
    if (rig->spare)
        dt_free(&rig->backend, rig->spare);
    dt_model_destroy(rig->model);
    if (rig->backend.table)
        dt_backend_close(&rig->backend);
    dt_comm_close(rig->comm);
    *rig = (struct dt_bench_rig){0};
}

dt_status dt_bench_rig_launch(struct dt_bench_rig *rig)
{
    return dt_stepper_launch(rig->stepper, rig->loader, ++rig->steps, DT_BENCH_LEARNING_RATE);
}
