// `dtrain --check`: prints what a job would do, before anything is allocated. Rank 0 calls
// dt_cmd_print_plan with an open job (cmd/train.c).
#include "cmd/cmd.h"

#include "base/round.h"
#include "comm/device_comm.h"
#include "data/reader.h"
#include "model/hf.h"
#include "train/memory.h"

#include <stdio.h>

static void print_bytes(const char *what, int64_t bytes)
{
    if (bytes > 0)
        printf("  %-16s %10.1f MiB\n", what, (double)bytes / 0x1p20);
}

static void print_sources(const struct dt_dataset *data)
{
    for (int i = 0; data->n_sources > 1 && i < data->n_sources; i++) {
        const struct dt_source *source = &data->sources[i];
        printf("  source %s: %lld %s, %lld windows\n", source->name, (long long)source->n_shards,
               source->n_shards == 1 ? "shard" : "shards", (long long)source->windows);
    }
}

// Of each source its weights, and how often the run reads it.
static void print_mixture(const struct dt_job *job)
{
    const struct dt_dataset *train = job->train;
    const struct dt_mixture *mixture = &train->mixture;
    for (int i = 0; i < mixture->n; i++) {
        double steps = 0;
        printf("mixture: %s", train->sources[i].name);
        for (int p = 0; p < mixture->n_phases; p++) {
            int64_t from = mixture->phases[p].from;
            int64_t end = p + 1 < mixture->n_phases ? mixture->phases[p + 1].from : job->steps;
            double share = dt_mixture_share(mixture, from, i);
            steps += from < job->steps ? share * (double)(dt_min_i64(end, job->steps) - from) : 0;
            if (p > 0)
                printf(", from step %lld", (long long)from + 1);
            printf(" %.4g %%", 100 * share);
        }
        printf(", %.3g epochs over the run\n",
               steps * (double)job->settings.data.batch / (double)train->sources[i].windows);
    }
}

static void print_dataset(const char *name, const struct dt_dataset *data)
{
    if (!data)
        return;
    const struct dt_frame_layout *layout = &data->layout;
    const char *unit = layout->target_width > 0 ? "frames" : "tokens";
    printf("%s: %lld %s (%s), %lld %s, %lld windows of %lld\n", name, (long long)data->n_shards,
           data->n_shards == 1 ? "shard" : "shards", data->kind->name, (long long)data->tokens,
           unit, (long long)data->windows, (long long)data->rules.seq_len);
    if (layout->target_width > 0) {
        printf("  %lld episodes, a window every %lld frames (data.stride); a frame has %lld values "
               "and %lld ids",
               (long long)data->episodes, (long long)data->shards[0].stride,
               (long long)layout->frame_width, (long long)layout->n_ids);
        for (int64_t i = 0; i < layout->n_ids; i++)
            printf("%s%lld", i ? ", " : " (tables of ", (long long)layout->ids[i]);
        printf("%s, the targets %lld\n", layout->n_ids ? ")" : "", (long long)layout->target_width);
        printf("  inputs %s; targets %s", data->inputs, data->targets);
        printf(data->rules.weights[0] ? "; weights %s\n" : "%s\n", data->rules.weights);
    }
    print_sources(data);
    for (int64_t i = 0; i < data->n_shards && i < 8; i++) {
        char types[DT_SHARD_TYPES];
        printf("  %s  %s x %lld\n", data->shards[i].path, dt_shard_types(&data->shards[i], types),
               (long long)data->shards[i].count);
    }
    if (data->n_shards > 8)
        printf("  … and %lld more\n", (long long)(data->n_shards - 8));
}

static dt_status print_memory(const struct dt_job *job, const struct dt_device_info *device,
                              const struct dt_params *params)
{
    struct dt_memory_plan plan = {0};
    const struct dt_stepper_config stepper = dt_job_stepper(job);
    int64_t spread = params->elements - dt_stepper_held(params, &stepper);
    DT_TRY(dt_job_memory(job, &plan));
    int64_t total = dt_memory_plan_bytes(&plan, true);
    int64_t on_device = dt_memory_plan_bytes(&plan, job->backend.table->unified);
    printf("memory per rank:\n");
    for (int i = 0; i < plan.n; i++)
        print_bytes(plan.rows[i].what, plan.rows[i].bytes);
    print_bytes("total", total);
    if (on_device < total)
        print_bytes("on the device", on_device);
    print_bytes("free now", device->memory_free);
    print_bytes("reserved", dt_job_reserved_memory(job, device));
    if (stepper.shard && job->comm->info.size > 1)
        printf("optim.shard saves %.1f MiB of optimizer states on each of %d ranks\n",
               (double)dt_optimizer_bytes(spread, &stepper.optimizer) / 0x1p20,
               job->comm->info.size);
    return DT_OK;
}

static void print_batch(const struct dt_job *job)
{
    int64_t batch = job->settings.data.batch, length = job->settings.data.seq_len;
    const char *unit = dt_model_unit(&job->model);
    printf("batch: %lld sequences of %lld %s = %lld %s per step: ranks %d x micro-batches %lld x "
           "sequences %lld\n",
           (long long)batch, (long long)length, unit, (long long)(batch * length), unit,
           job->comm->info.size, (long long)(job->local_batch / job->micro_batch),
           (long long)job->micro_batch);
    const struct dt_loader_config loader = dt_job_train_loader(job);
    struct dt_array_list list;
    int64_t bytes = 0;
    dt_loader_arrays(&loader, &list);
    for (int i = 0; i < list.n; i++) {
        const struct dt_array_spec *spec = &list.arrays[i];
        printf("%s%s %s x %lld", i ? ", " : "arrays: ", spec->name, dt_dtype_name(spec->type),
               (long long)spec->width);
        bytes += dt_array_bytes(spec, job->local_batch * length);
    }
    printf("; a batch has %.1f KiB per rank\n", (double)bytes / 0x1p10);
    if (dt_job_sum_order(job) == DT_SUM_TREE)
        printf("sums: one binary tree over %lld micro-batches, the same on up to that many ranks\n",
               (long long)(batch / job->micro_batch));
    printf("order: blocks of %lld window%s, %s\n", (long long)job->settings.data.block,
           job->settings.data.block == 1 ? "" : "s",
           job->settings.data.shuffle ? "shuffled" : "as in the files");
    print_mixture(job);
    printf("steps: %lld, %lld per epoch, %.3g %s total\n", (long long)job->steps,
           (long long)job->steps_per_epoch, (double)job->steps * (double)(batch * length), unit);
}

dt_status dt_cmd_print_plan(const struct dt_job *job)
{
    struct dt_params params;
    struct dt_device_info device;
    char version[64], type[DT_CONFIG_ALLOWED];
    DT_TRY(dt_model_list(&job->model, &params, NULL));
    dt_status status = job->backend.table->info(job->backend.device, &device);
    if (status == DT_OK) {
        dt_config_echo(job->config, stdout);
        printf("\ndevice: %s (%s)\n", device.name, device.features);
        print_dataset("training data", job->train);
        print_dataset("validation data", job->val);
        printf("model: %.3f M parameters, %s storage, %.2f MFLOP per %.5s in training\n",
               (double)params.count * 1e-6, dt_dtype_name(job->model.storage),
               dt_model_flops_per_token(&job->model) * 1e-6,
               dt_model_unit(&job->model)); // without its plural's s
        if (dt_model_reads_tokens(&job->model) &&
            dt_hf_type_text(&job->model, type, sizeof type) == DT_OK)
            printf("checkpoints: model_type %s\n", type);
        print_batch(job);
        if (!dt_job_uses_device_comm(job))
            printf("communication: %s\n", job->comm->info.backend);
        else if (dt_device_comm_known->version(version, sizeof version) == DT_OK)
            printf("communication: NCCL %s\n", version);
        else
            dt_error_clear(); // raised again below, by dt_train_check_resources
        if (job->resume[0])
            printf("would resume from %s\n", job->resume);
        status = print_memory(job, &device, &params);
    }
    dt_params_free(&params);
    return status == DT_OK ? dt_train_check_resources(job) : status;
}
