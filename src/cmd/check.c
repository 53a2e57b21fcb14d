// `dtrain --check`: prints what a job would do, before it allocates anything. Rank 0 calls
// dt_cmd_print_plan with an open job (cmd/train.c).
#include "cmd/cmd.h"

#include "base/round.h"
#include "base/text.h"
#include "bench/bench.h"
#include "checkpoint/checkpoint.h"
#include "comm/device_comm.h"
#include "data/reader.h"
#include "model/hf.h"
#include "train/memory.h"
#include "train/propose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_bytes(const char *what, int64_t bytes)
{
    if (bytes > 0)
        printf("  %-16s %10.1f MiB\n", what, (double)bytes / 0x1p20);
}

// Prints the weight of each source and how often the run reads it.
static void print_mixture(const struct dt_job *job)
{
    const struct dt_dataset *train = job->train;
    const struct dt_mixture *mixture = &train->mixture;
    for (int i = 0; i < mixture->n; i++) {
        char shares[DT_DATA_TEXT] = "";
        double steps = 0;
        for (int p = 0; p < mixture->n_phases; p++) {
            int64_t from = mixture->phases[p].from;
            int64_t end = p + 1 < mixture->n_phases ? mixture->phases[p + 1].from : job->steps;
            double share = dt_mixture_share(mixture, from, i);
            steps += from < job->steps ? share * (double)(dt_min_i64(end, job->steps) - from) : 0;
            if (p > 0)
                dt_append(shares, sizeof shares, ", from step %lld", (long long)from + 1);
            dt_append(shares, sizeof shares, " %.4g %%", 100 * share);
        }
        dt_print_line("mixture: %s%s, %.3g epochs over the run", train->sources[i].name, shares,
                      steps * (double)job->settings.data.batch / (double)train->sources[i].windows);
    }
}

static void print_frames(const struct dt_dataset *data)
{
    const struct dt_frame_layout *layout = &data->layout;
    char tables[DT_DATA_TEXT] = "";
    for (int64_t i = 0; i < layout->n_ids; i++)
        dt_append(tables, sizeof tables, "%s%lld", i ? ", " : " (tables of ",
                  (long long)layout->ids[i]);
    dt_print_line(
        "  %s, a window every %s (data.stride); a frame has %s and %s%s%s, the targets %lld",
        DT_COUNT(data->episodes, "episodes"), DT_COUNT(data->shards[0].stride, "frames"),
        DT_COUNT(layout->frame_width, "values"), DT_COUNT(layout->n_ids, "ids"), tables,
        layout->n_ids ? ")" : "", (long long)layout->target_width);
    dt_print_line("  inputs %s; targets %s%s%s", data->inputs, data->targets,
                  data->rules.weights[0] ? "; weights " : "", data->rules.weights);
}

static void print_dataset(const char *name, const struct dt_dataset *data)
{
    if (!data)
        return;
    bool frames = data->layout.target_width > 0;
    dt_print_line("%s: %s (%s), %s, %s of %lld", name, DT_COUNT(data->n_shards, "shards"),
                  data->kind->name, DT_COUNT(data->tokens, frames ? "frames" : "tokens"),
                  DT_COUNT(data->windows, "windows"), (long long)data->rules.seq_len);
    if (frames)
        print_frames(data);
    for (int i = 0; data->n_sources > 1 && i < data->n_sources; i++) {
        const struct dt_source *source = &data->sources[i];
        dt_print_line("  source %s: %s, %s", source->name, DT_COUNT(source->n_shards, "shards"),
                      DT_COUNT(source->windows, "windows"));
    }
    for (int64_t i = 0; i < data->n_shards && i < 8; i++) {
        char types[DT_SHARD_TYPES];
        dt_print_line("  %s  %s x %lld", data->shards[i].path,
                      dt_shard_types(&data->shards[i], types), (long long)data->shards[i].count);
    }
    if (data->n_shards > 8)
        printf("  … and %lld more\n", (long long)(data->n_shards - 8));
}

static dt_status print_memory(const struct dt_job *job, const struct dt_device_info *device)
{
    struct dt_memory_plan plan = {0}, whole = {0};
    struct dt_job without = *job;
    DT_TRY(dt_job_memory(job, &plan));
    int64_t total = dt_memory_plan_bytes(&plan, true);
    bool unified = job->backend.table->unified;
    int64_t on_device = dt_memory_plan_bytes(&plan, unified);
    printf("memory per rank:\n");
    for (int i = 0; i < plan.n; i++)
        print_bytes(plan.rows[i].what, plan.rows[i].bytes);
    print_bytes("total", total);
    if (on_device < total)
        print_bytes("on the device", on_device);
    print_bytes("free now", device->memory_free);
    print_bytes("reserved", dt_job_reserved_memory(job, device));
    if (dt_job_sharding(job) == DT_SHARD_NOTHING || job->comm->info.size == 1)
        return DT_OK;
    without.settings.optim.shard = DT_SHARD_FALSE;
    DT_TRY(dt_job_memory(&without, &whole));
    dt_print_line("optim.shard saves %.1f MiB on each of %d ranks",
                  (double)(dt_memory_plan_bytes(&whole, unified) - on_device) / 0x1p20,
                  job->comm->info.size);
    return DT_OK;
}

static void print_batch(const struct dt_job *job)
{
    int64_t batch = job->settings.data.batch, length = job->settings.data.seq_len;
    const char *unit = dt_model_unit(&job->model);
    int64_t context = job->settings.comm.context;
    char arrays[DT_DATA_TEXT] = "", shared[64] = "";
    if (context > 1)
        snprintf(shared, sizeof shared, "shared by %lld ranks, ", (long long)context);
    dt_print_line("batch: %lld sequences of %lld %s = %lld %s per step: %s %d x micro-batches %lld "
                  "x sequences %lld",
                  (long long)batch, (long long)length, unit, (long long)(batch * length), unit,
                  context > 1 ? "groups" : "ranks", dt_job_groups(job),
                  (long long)(job->local_batch / job->micro_batch), (long long)job->micro_batch);
    if (dt_job_segment(job) < length)
        dt_print_line("segments: %lld of %lld %s a window, %sforward twice (model.segment)",
                      (long long)dt_ceil_div(length, dt_job_segment(job)),
                      (long long)dt_job_segment(job), unit, shared);
    const struct dt_loader_config loader = dt_job_train_loader(job);
    struct dt_array_list list;
    int64_t bytes = 0;
    dt_loader_arrays(&loader, &list);
    for (int i = 0; i < list.n; i++) {
        const struct dt_array_spec *spec = &list.arrays[i];
        dt_append(arrays, sizeof arrays, "%s%s %s x %lld", i ? ", " : "", spec->name,
                  dt_dtype_name(spec->type), (long long)spec->width);
        bytes += dt_array_bytes(spec, job->local_batch * length);
    }
    dt_print_line("arrays: %s; a batch has %.1f KiB per rank", arrays, (double)bytes / 0x1p10);
    if (dt_job_sum_order(job) == DT_SUM_TREE)
        dt_print_line(
            "sums: one binary tree over %lld micro-batches, the same on up to that many ranks",
            (long long)(batch / job->micro_batch));
    printf("order: blocks of %s, %s\n", DT_COUNT(job->settings.data.block, "windows"),
           job->settings.data.shuffle ? "shuffled" : "as in the files");
    print_mixture(job);
    printf("steps: %lld, %lld per epoch, %.3g %s total\n", (long long)job->steps,
           (long long)job->steps_per_epoch, (double)job->steps * (double)(batch * length), unit);
}

// The median time of the last steps in the metrics of the resumed run; false: none.
static bool measured_step(const struct dt_job *job, double *ms, int64_t *first, int64_t *last)
{
    static const char event[] = "\"event\":\"train\",\"step\":", field[] = "\"step_ms\":";
    enum { TAIL = 1 << 16 };
    char path[DT_PATH], tail[TAIL];
    double list[TAIL / (sizeof event + sizeof field - 2)]; // no line is shorter
    int n = 0;
    FILE *f = job->resume[0] && dt_path(path, "%s/metrics.jsonl", job->run_path) == DT_OK
                  ? fopen(path, "r")
                  : NULL;
    if (!f)
        return false;
    if (fseek(f, -(long)TAIL + 1, SEEK_END) != 0)
        rewind(f);
    tail[fread(tail, 1, sizeof tail - 1, f)] = 0;
    fclose(f);
    for (const char *at = tail, *value; (at = strstr(at, event)); at = value) {
        value = strstr(at, field);
        if (!value)
            break;
        *last = strtoll(at + sizeof event - 1, NULL, 10);
        *first = n == 0 ? *last : *first;
        list[n++] = strtod(value + sizeof field - 1, NULL);
    }
    *ms = dt_bench_median_of(list, n);
    return n > 0;
}

// Prints how long the rest of the run takes, and how that was estimated.
static void print_duration(const struct dt_job *job, const struct dt_device_info *device,
                           int64_t parameters)
{
    static const int64_t large = 100000000; // drawing this many initial weights takes seconds
    static const double share = 0.35;       // of the dense peak, as reached by large models on GPUs
    struct dt_trainer_state state = {0};
    char how[160] = "", duration[DT_DURATION_TEXT];
    double seconds = 0, flops = dt_model_flops_per_token(&job->model) *
                                (double)(job->local_batch * job->settings.data.seq_len);
    int64_t first = 0, last = 0, tokens;
    if (job->resume[0] && dt_checkpoint_state(job->resume, &state) != DT_OK)
        dt_error_clear();
    int64_t left = job->steps - state.step;
    if (left <= 0)
        return;
    if (measured_step(job, &seconds, &first, &last)) {
        seconds *= 1e-3;
        snprintf(how, sizeof how, "the median of steps %lld to %lld of this run", (long long)first,
                 (long long)last);
    } else if (device->peak_flops > 0) {
        seconds = flops / (share * device->peak_flops);
        snprintf(how, sizeof how, "if %.0f %% of the GPU's %.0f TFLOP/s are reached", 100 * share,
                 device->peak_flops * 1e-12);
    } else if (job->backend.table->unified && parameters <= large &&
               dt_bench_estimate(job, &seconds, &tokens) == DT_OK) {
        snprintf(how, sizeof how, "from steps of %lld %s timed now, without communication",
                 (long long)tokens, dt_model_unit(&job->model));
    } else {
        dt_error_clear();
        printf("duration: not estimated here; after its first step the run shows the time left\n");
        return;
    }
    dt_print_line("duration: about %s for %s of %.3g ms: %s; without validation and checkpoints",
                  dt_duration(seconds * (double)left, duration), DT_COUNT(left, "steps"),
                  1e3 * seconds, how);
}

dt_status dt_cmd_print_plan(const struct dt_job *job, bool all)
{
    struct dt_params params;
    struct dt_device_info device;
    char version[64], type[DT_CONFIG_ALLOWED];
    DT_TRY(dt_model_list(&job->model, &params, NULL));
    dt_status status = job->backend.table->info(job->backend.device, &device);
    if (status == DT_OK) {
        if (all)
            dt_config_echo(job->config, stdout);
        else
            dt_config_print_set(job->config, stdout);
        printf(all ? "\n" : "(all keys, with their defaults: dtrain --check --all)\n\n");
        dt_print_line("device: %s (%s)", device.name, device.features);
        print_dataset("training data", job->train);
        print_dataset("validation data", job->val);
        dt_print_line("model: %.3f M parameters, %s storage, %.2f MFLOP per %.5s in training",
                      (double)params.count * 1e-6, dt_dtype_name(job->model.storage),
                      dt_model_flops_per_token(&job->model) * 1e-6,
                      dt_model_unit(&job->model)); // without the plural s
        if (dt_model_reads_tokens(&job->model) &&
            dt_hf_type_text(&job->model, type, sizeof type) == DT_OK)
            dt_print_line("checkpoints: model_type %s", type);
        print_batch(job);
        if (!dt_job_uses_device_comm(job))
            printf("communication: %s\n", job->comm->info.backend);
        else if (dt_device_comm_known->version(version, sizeof version) == DT_OK)
            printf("communication: NCCL %s\n", version);
        else
            dt_error_clear(); // raised again below, by dt_train_check_resources
        if (job->resume[0])
            dt_print_line("would resume from %s", job->resume);
        status = print_memory(job, &device);
    }
    if (status == DT_OK)
        status = dt_train_check_resources(job);
    if (status == DT_OK)
        print_duration(job, &device, params.count);
    dt_params_free(&params);
    return status;
}

// Sizes that are no multiple of 64 leave parts of the tensor cores' tiles idle; multiples of 128
// fill the largest tiles.
enum { TILE = 64, LARGE_TILE = 128 };

static void print_size(const char *what, int64_t size, bool *found)
{
    if (size % TILE == 0)
        return;
    if (!*found)
        printf("sizes that waste tensor cores:\n");
    *found = true;
    printf("  %-44s %8lld  next: %lld, %lld\n", what, (long long)size,
           (long long)dt_round_up(size, TILE), (long long)dt_round_up(size, LARGE_TILE));
}

// Prints each tensor once, without its layer's number.
static void print_sizes(const struct dt_job *job, const struct dt_params *params)
{
    bool found = false;
    for (int i = params->n - 1; i >= 0; i--) {
        const struct dt_param *row = &params->rows[i];
        const char *layers = strstr(row->name, ".layers."), *name = row->name;
        char what[DT_PARAM_NAME + 16];
        if (row->n_dims != 2 || (!row->matrix && layers) || (layers && !strstr(name, ".layers.0.")))
            continue;
        name = layers ? layers + strlen(".layers.0.") : name;
        snprintf(what, sizeof what, "%s, outputs", name);
        print_size(what, row->count / row->shape[1], &found);
        snprintf(what, sizeof what, "%s, inputs", name);
        print_size(what, row->shape[1], &found);
    }
    print_size("data.micro_batch * data.seq_len", job->micro_batch * job->settings.data.seq_len,
               &found);
    if (!found)
        printf("all sizes of products are multiples of %d\n", TILE);
}

static void print_lengths(const char *key, const struct dt_fit_length *fits, int n)
{
    for (int i = 0; i < n; i++)
        printf("  %s = %-*lld model.recompute = %-6s %8.1f GiB\n", key, 26 - (int)strlen(key),
               (long long)fits[i].length, dt_recompute_name[fits[i].recompute],
               (double)fits[i].bytes / 0x1p30);
}

dt_status dt_cmd_print_proposal(const struct dt_job *job, const char *device)
{
    struct dt_proposal p;
    struct dt_params params;
    DT_TRY(dt_propose(job, device, &p));
    DT_TRY(dt_model_list(&job->model, &params, NULL));
    printf("%s: %.1f GiB for training; %.3f M parameters, %s storage\n", p.device,
           (double)p.bytes / 0x1p30, (double)params.count * 1e-6, dt_dtype_name(p.storage));
    printf("largest micro-batch (of %lld sequences a rank), data.seq_len = %lld:\n",
           (long long)job->local_batch, (long long)job->settings.data.seq_len);
    for (int i = 0; i < p.n_batches; i++)
        printf("  data.micro_batch = %-10lld model.recompute = %-6s %8.1f GiB\n",
               (long long)p.batches[i].micro_batch, dt_recompute_name[p.batches[i].recompute],
               (double)p.batches[i].bytes / 0x1p30);
    if (p.n_batches == 0)
        printf("  none: not one sequence fits\n");
    if (p.n_segments > 0)
        printf("longest segment of such a window, data.micro_batch = 1:\n");
    print_lengths("model.segment", p.segments, p.n_segments);
    printf("longest window, data.micro_batch = 1:\n");
    print_lengths("data.seq_len", p.windows, p.n_windows);
    if (p.n_windows == 0)
        printf("  none: the model does not fit\n");
    print_sizes(job, &params);
    dt_params_free(&params);
    return DT_OK;
}
