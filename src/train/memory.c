// Adds up what model, step, input and snapshot plan to allocate. If that does not fit, searches for
// settings that would fit, by their plans.
#include "train/memory.h"

#include "base/log.h"
#include "base/round.h"
#include "base/text.h"
#include "train/evaluate.h"
#include "train/profile.h"
#include "train/replicas.h"

#include <stdio.h>

enum { RECOMPUTE_KINDS = DT_RECOMPUTE_BLOCK + 1, NAMED_CATEGORIES = 3, BYTES_TEXT = 32 };

struct dt_stepper_config dt_job_stepper(const struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    return (struct dt_stepper_config){
        .comm = job->comm,
        .batch = {.sequences = job->local_batch,
                  .length = s->data.seq_len,
                  .micro = job->micro_batch,
                  .segment = dt_job_segment(job),
                  .context = s->comm.context,
                  .comm = job->comm,
                  .takes_turns = dt_job_takes_turns(job)},
        .tokens = s->data.batch * s->data.seq_len,
        .optimizer = {.beta1 = (float)s->optim.beta1,
                      .beta2 = (float)s->optim.beta2,
                      .eps = (float)s->optim.eps,
                      .weight_decay = (float)s->optim.weight_decay,
                      .grad_clip = (float)s->optim.grad_clip,
                      .ema = (float)s->optim.ema,
                      .keeps_weights = dt_job_shape(job, true).ring_weights,
                      .muon = s->optim.name == DT_OPTIMIZER_MUON,
                      .momentum = (float)s->optim.momentum,
                      .groups = s->optim.lr_groups,
                      .lr = s->optim.lr},
        .bucket_bytes = (int64_t)(s->comm.bucket_mb * 1e6),
        .wire = s->comm.dtype == DT_WIRE_BF16 ? DT_BF16 : DT_F32,
        .order = dt_job_sum_order(job),
        .between_devices = dt_job_uses_device_comm(job),
        .selftest = dt_job_wants_selftest(job),
        .storage = job->model.storage,
        .shard = dt_job_sharding(job),
        .graphs = s->run.cuda_graph != DT_TOGGLE_FALSE,
        .carry_steps = s->data.carry_state ? job->steps_per_epoch : 0};
}

dt_status dt_job_memory(const struct dt_job *job, struct dt_memory_plan *plan)
{
    const struct dt_backend *backend = &job->backend;
    struct dt_model_shape shape = dt_job_shape(job, true);
    struct dt_loader_config loader = dt_job_train_loader(job);
    struct dt_stepper_config stepper = dt_job_stepper(job);
    struct dt_params params;
    struct dt_array_list arrays;
    dt_status status = DT_OK;
    DT_TRY(dt_model_list(&job->model, NULL, &arrays));
    DT_TRY(dt_model_plan(backend, &job->model, &shape, plan, &params));
    if (stepper.carry_steps > 0)
        DT_TRY_GOTO(status, out,
                    dt_carry_plan(backend, &job->model, &stepper.batch, &job->comm->info, plan));
    int64_t held = dt_stepper_held(&params, &stepper);
    DT_TRY_GOTO(status, out, dt_segments_plan(&job->model, &arrays, &shape, &stepper.batch, plan));
    DT_TRY_GOTO(status, out, dt_stepper_plan(backend, &params, &arrays, &stepper, plan));
    dt_memory_plan_add(plan, "host batches", dt_loader_bytes(&loader), true);
    if (shape.losses)
        dt_memory_plan_add(plan, "host losses",
                           DT_STEPS_IN_FLIGHT * stepper.batch.sequences * stepper.batch.length *
                               (int64_t)(sizeof(float) + sizeof(int32_t)),
                           true);
    dt_memory_plan_add(plan, "decoded chunks", dt_dataset_kept_chunks(job->train), true);
    dt_memory_plan_add(plan, "host snapshot",
                       dt_snapshot_bytes(backend, &params, held,
                                         dt_optimizer_elements(&params, held, &stepper.optimizer),
                                         job->comm->info.rank == 0),
                       true);
    DT_TRY_GOTO(status, out, dt_evaluation_plan(job, plan));
    dt_profile_plan(job, plan);
    if (job->settings.comm.verify_replicas > 0)
        dt_replicas_plan(backend, &params, plan);
out:
    dt_params_free(&params);
    return status;
}

bool dt_job_takes_one_sequence(const struct dt_job *job)
{
    return dt_model_whole_shares(&job->model) > 0 &&
           dt_job_segment(job) < job->settings.data.seq_len;
}

dt_status dt_fit_search(dt_fit_plan plan, void *context, int64_t local_batch,
                        enum dt_sum_order order, int64_t free, struct dt_fit found[RECOMPUTE_KINDS],
                        int *n_found)
{
    int64_t enough = 0; // sequences that a cheaper level allows
    *n_found = 0;
    for (int kind = 0; kind < RECOMPUTE_KINDS; kind++)
        for (int64_t micro = local_batch; micro > enough; micro--) {
            int64_t bytes = 0;
            if (local_batch % micro != 0 ||
                (order == DT_SUM_TREE && !dt_is_power_of_two(local_batch / micro)))
                continue;
            DT_TRY(plan(context, (enum dt_recompute)kind, micro, &bytes));
            if (bytes > free)
                continue;
            found[(*n_found)++] = (struct dt_fit){(enum dt_recompute)kind, micro, bytes};
            enough = micro;
        }
    return DT_OK;
}

static dt_status plan_of_job(void *context, enum dt_recompute recompute, int64_t micro_batch,
                             int64_t *bytes)
{
    struct dt_job trial = *(const struct dt_job *)context;
    struct dt_memory_plan plan = {0};
    trial.model.recompute = recompute;
    trial.micro_batch = micro_batch;
    DT_TRY(dt_job_memory(&trial, &plan));
    *bytes = dt_memory_plan_bytes(&plan, trial.backend.table->unified);
    return DT_OK;
}

static const char *bytes_text(int64_t bytes, char text[BYTES_TEXT])
{
    bool small = bytes < INT64_C(1) << 30;
    snprintf(text, BYTES_TEXT, "%.1f %s", (double)bytes / (small ? 0x1p20 : 0x1p30),
             small ? "MiB" : "GiB");
    return text;
}

// "activations 60.2 GiB, optimizer states 20.0 GiB, gradients 10.0 GiB"
static void name_largest(const struct dt_memory_plan *plan, char *text, size_t size)
{
    char bytes[BYTES_TEXT];
    bool named[DT_MEMORY_ROWS] = {false};
    text[0] = 0;
    for (int k = 0; k < NAMED_CATEGORIES; k++) {
        int largest = -1;
        for (int i = 0; i < plan->n; i++)
            if (!named[i] && !plan->rows[i].host &&
                (largest < 0 || plan->rows[i].bytes > plan->rows[largest].bytes))
                largest = i;
        if (largest < 0)
            return;
        named[largest] = true;
        dt_append(text, size, "%s%s %s", k ? ", " : "", plan->rows[largest].what,
                  bytes_text(plan->rows[largest].bytes, bytes));
    }
}

// "data.micro_batch = 4 with model.recompute = scan needs 61.2 GiB; …"
static void name_fits(const struct dt_fit *fits, int n, char *text, size_t size)
{
    char bytes[BYTES_TEXT];
    text[0] = 0;
    for (int i = 0; i < n; i++)
        dt_append(text, size, "%sdata.micro_batch = %lld with model.recompute = %s needs %s",
                  i ? "; " : "", (long long)fits[i].micro_batch,
                  dt_recompute_name[fits[i].recompute], bytes_text(fits[i].bytes, bytes));
}

// How much memory the rank may use.
struct budget {
    const char *memory, *owner; // "device memory", the device
    int64_t bytes;
    char note[64]; // appended to messages
};

static struct budget of_device(const struct dt_job *job, const struct dt_device_info *info)
{
    int64_t share = info->memory_free / job->ranks_on_device;
    struct budget budget = {"device memory", info->name, share - dt_job_reserved_memory(job, info),
                            ""};
    const char *note = job->ranks_on_device > 1 ? " free for each rank that shares it"
                       : dt_job_uses_device_comm(job)
                           ? " free after what is reserved for NCCL"
                           : " free after what is reserved for code loaded later";
    snprintf(budget.note, sizeof budget.note, "%s", note);
    return budget;
}

// On CPUs a rank may use all of the host's memory, since what others use now may soon be free.
static struct budget of_host(const struct dt_job *job, const struct dt_device_info *info)
{
    int ranks = job->comm->info.local_size;
    struct budget budget = {"memory", "the machine", info->memory / ranks, ", without swap"};
    if (ranks > 1)
        snprintf(budget.note, sizeof budget.note, ", without swap, for each of the %d ranks on it",
                 ranks);
    return budget;
}

// *info, of the rank's device, must outlive the budget.
static dt_status budget_of(const struct dt_job *job, struct dt_device_info *info,
                           struct budget *budget)
{
    DT_TRY(dt_backend_info(&job->backend, info));
    *budget = job->backend.table->unified ? of_host(job, info) : of_device(job, info);
    return DT_OK;
}

static dt_status plan_of_segment(void *context, int64_t segment, int64_t *bytes)
{
    struct dt_job trial = *(const struct dt_job *)context;
    trial.model.segment = segment;
    return plan_of_job(&trial, trial.model.recompute,
                       dt_job_takes_one_sequence(&trial) ? 1 : trial.micro_batch, bytes);
}

dt_status dt_fit_segment(dt_segment_plan plan, void *context,
                         const struct dt_segment_choice *choice, int64_t *segment, int64_t *bytes)
{
    const int64_t length = choice->length, ranks = choice->ranks;
    *segment = *bytes = 0;
    for (int64_t n = ranks;; n += ranks * dt_ceil_div(n, 8 * ranks)) {
        int64_t needed = 0, tried = n == 1 ? 0 : dt_round_up(dt_ceil_div(length, n), choice->unit);
        if (tried > 0 && dt_ceil_div(length, tried) % ranks != 0) {
            if (tried == choice->unit)
                return DT_OK;
            continue;
        }
        DT_TRY(plan(context, tried, &needed));
        if (*segment == 0 || needed < *bytes) {
            *segment = tried > 0 && tried < length ? tried : length;
            *bytes = needed;
        }
        if (*bytes <= choice->free || tried == choice->unit)
            return DT_OK;
    }
}

static dt_status search_segment(const struct dt_job *job, int64_t free, int64_t *segment,
                                int64_t *bytes)
{
    const struct dt_segment_choice choice = {.length = job->settings.data.seq_len,
                                             .unit = dt_segment_unit(&job->backend),
                                             .ranks = job->settings.comm.context,
                                             .free = free};
    return dt_fit_segment(plan_of_segment, (void *)job, &choice, segment, bytes);
}

// Chooses the fewest segments that fit the memory of this rank.
static dt_status choose_segment(const struct dt_job *job, int64_t *segment)
{
    struct dt_device_info info;
    struct budget budget = {0};
    int64_t bytes;
    DT_TRY(budget_of(job, &info, &budget));
    return search_segment(job, budget.bytes - budget.bytes / 64, segment, &bytes);
}

// Between devices states travel by NCCL alone.
static dt_status check_messages(const struct dt_job *job)
{
    if (job->backend.table->unified || dt_job_uses_device_comm(job))
        return DT_OK;
    return dt_config_reject(
        job->config, "comm.context",
        "give each rank its own GPU and comm.backend = auto, or use run.device = cpu",
        "%lld ranks share each window, between GPUs by NCCL alone, which this run does not use "
        "(comm.backend = %s, run.share_device = %s)",
        (long long)job->settings.comm.context, dt_config_find(job->config, "comm.backend")->text,
        job->settings.run.share_device ? "true" : "false");
}

// Every rank of a group runs as many segments, so all take part in the same collectives.
static dt_status check_context(const struct dt_job *job)
{
    static const char key[] = "comm.context";
    int64_t context = job->settings.comm.context, length = job->settings.data.seq_len,
            segment = dt_job_segment(job), n = dt_ceil_div(length, segment);
    char hint[96];
    DT_TRY(check_messages(job));
    snprintf(hint, sizeof hint, "use a model.segment of %lld, or a data.seq_len of %lld",
             (long long)dt_round_up(dt_ceil_div(length, context), dt_segment_unit(&job->backend)),
             (long long)(dt_round_up(n, context) * segment));
    return n % context == 0
               ? DT_OK
               : dt_config_reject(job->config, key, hint,
                                  "%lld ranks cannot share equally the %lld %s of a window "
                                  "(data.seq_len = %lld, %lld positions each)",
                                  (long long)context, (long long)n, n == 1 ? "segment" : "segments",
                                  (long long)length, (long long)segment);
}

static const char looks_both_ways[] =
    "model.layers has blocks that look both ways over a whole window";

// Ranks share blocks that run over whole windows in equal parts.
static dt_status check_shares(const struct dt_job *job)
{
    const int64_t context = job->settings.comm.context, shares = dt_model_whole_shares(&job->model);
    if (shares == 0 || context == 1)
        return DT_OK;
    if (!job->backend.table->unified)
        return dt_config_reject(job->config, "comm.context",
                                "set comm.context = 1, or use run.device = cpu",
                                "%lld, but %s, which ranks share between CPUs alone",
                                (long long)context, looks_both_ways);
    return shares % context == 0
               ? DT_OK
               : dt_config_reject(job->config, "comm.context",
                                  "use a comm.context that divides model.n_kv_head",
                                  "%lld, but %s, whose heads that many ranks cannot share equally "
                                  "(model.n_kv_head = %lld)",
                                  (long long)context, looks_both_ways, (long long)shares);
}

// Blocks that run over whole windows take one sequence at a time.
static dt_status check_whole(const struct dt_job *job)
{
    return !dt_job_takes_one_sequence(job) || job->micro_batch == 1
               ? DT_OK
               : dt_config_reject(job->config, "data.micro_batch", "set data.micro_batch = 1",
                                  "%lld, but %s, with model.segment one sequence at a time",
                                  (long long)job->micro_batch, looks_both_ways);
}

static dt_status check_turns(const struct dt_job *job)
{
    return job->model.segment == 0 || dt_job_may_segment(job)
               ? DT_OK
               : dt_config_reject(job->config, "model.segment",
                                  "use optim.shard = states, or comm.reduce = fast",
                                  "with optim.shard = %s the gradients of segments are summed over "
                                  "ranks one by one, which reproducible sums of micro-batches are "
                                  "not",
                                  dt_config_find(job->config, "optim.shard")->text);
}

static dt_status check_segment(const struct dt_job *job)
{
    int64_t segment = job->model.segment, unit = dt_segment_unit(&job->backend);
    DT_TRY(check_whole(job));
    if (job->settings.comm.context > 1)
        DT_TRY(check_context(job));
    char hint[64];
    snprintf(hint, sizeof hint, "use %lld", (long long)dt_round_up(segment, unit));
    return segment % unit == 0
               ? DT_OK
               : dt_config_reject(job->config, "model.segment", hint,
                                  "%lld is not a multiple of %lld, the chunk of the scans on %s",
                                  (long long)segment, (long long)unit, job->backend.table->name);
}

// model.segment = auto.
static dt_status settle_auto(struct dt_job *job)
{
    static const char key[] = "model.segment";
    int64_t chosen = 0;
    char text[24];
    DT_TRY(dt_agree(job->comm, choose_segment(job, &chosen)));
    DT_TRY(dt_allreduce(job->comm, &chosen, 1, DT_I64, DT_MIN));
    job->model.segment = chosen < job->settings.data.seq_len ? chosen : 0;
    snprintf(text, sizeof text, "%lld", (long long)job->model.segment);
    if (job->model.segment > 0)
        dt_info("model.segment = auto: a window is run %s positions at a time", text);
    return job->config
               ? dt_config_note(job->config, key, text, dt_config_find(job->config, key)->origin)
               : DT_OK;
}

dt_status dt_job_settle_segment(struct dt_job *job)
{
    int64_t context = job->settings.comm.context, *segment = &job->model.segment;
    DT_TRY(dt_agree(job->comm, check_turns(job)));
    DT_TRY(dt_agree(job->comm, check_shares(job)));
    if (*segment < 0)
        DT_TRY(settle_auto(job));
    if (context > 1 && *segment == 0) // one for each rank
        *segment = dt_round_up(dt_ceil_div(job->settings.data.seq_len, context),
                               dt_segment_unit(&job->backend));
    return dt_agree(job->comm, check_segment(job));
}

static dt_status refuse(const struct dt_job *job, const struct dt_memory_plan *plan, int64_t needed,
                        const struct budget *budget)
{
    char largest[256], hint[DT_ERROR_HINT], needed_text[BYTES_TEXT], free_text[BYTES_TEXT];
    struct dt_fit fits[RECOMPUTE_KINDS];
    struct dt_job trial = *job;
    int64_t free = budget->bytes - budget->bytes / 64, length = job->settings.data.seq_len,
            bytes = 0;
    int n;
    // Proposals leave room for what is not planned.
    DT_TRY(dt_fit_search(plan_of_job, (void *)job,
                         dt_job_takes_one_sequence(job) ? 1 : job->local_batch,
                         dt_job_sum_order(job), free, fits, &n));
    name_fits(fits, n, hint, sizeof hint);
    if (dt_job_segment(job) == length && dt_job_may_segment(job)) {
        DT_TRY(search_segment(job, free, &trial.model.segment, &bytes));
        bool one = job->micro_batch > 1 && dt_job_takes_one_sequence(&trial);
        if (dt_job_segment(&trial) < length && bytes <= free)
            dt_append(hint, sizeof hint, "%smodel.segment = %lld%s needs %s", n > 0 ? "; " : "",
                      (long long)trial.model.segment, one ? " with data.micro_batch = 1" : "",
                      bytes_text(bytes, needed_text));
    }
    if (!hint[0])
        snprintf(hint, sizeof hint,
                 "no data.micro_batch or model.recompute would fit: use a smaller model or "
                 "data.seq_len, or a device with more free memory");
    name_largest(plan, largest, sizeof largest);
    return DT_FAIL(DT_MACHINE, hint, "training needs %s of %s, and %s has %s%s; most of it for %s",
                   bytes_text(needed, needed_text), budget->memory, budget->owner,
                   bytes_text(budget->bytes, free_text), budget->note, largest);
}

// Kernels of dtrain and cuBLASLt are loaded at their first launch (CUDA_MODULE_LOADING=LAZY is the
// default since 12.2) and stay. Graphs need memory too, and so does the local memory of the kernel
// that uses most, for every thread that the device can hold: tests/sass allows 128 bytes, 35 MB on
// 132 SMs of 2048 threads. NCCL's buffers and kernels need about twice as much again, and those for
// messages between neighbours in a group once for states, and once for reproducible sums.
int64_t dt_job_reserved_memory(const struct dt_job *job, const struct dt_device_info *info)
{
    int64_t share = info->memory / 128, most = INT64_C(1) << 29;
    if (job->backend.table->unified)
        return 0;
    share = share < most ? share : most;
    if (!dt_job_uses_device_comm(job))
        return share;
    if (job->settings.comm.context == 1)
        return 3 * share;
    return (dt_job_sum_order(job) == DT_SUM_TREE ? 5 : 4) * share;
}

dt_status dt_job_check_memory(const struct dt_job *job)
{
    struct dt_memory_plan plan = {0};
    struct dt_device_info info;
    struct budget budget = {0};
    DT_TRY(budget_of(job, &info, &budget));
    DT_TRY(dt_job_memory(job, &plan));
    int64_t needed = dt_memory_plan_bytes(&plan, job->backend.table->unified);
    return needed <= budget.bytes ? DT_OK : refuse(job, &plan, needed, &budget);
}

dt_status dt_train_check_resources(const struct dt_job *job)
{
    DT_TRY(dt_job_check_nccl(job));
    return dt_job_check_memory(job);
}
