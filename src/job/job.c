// Opens a job: goes from a configuration to everything that a command needs, in the order of
// dt_job_open.
#include "job/job.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/bucket_plan.h"
#include "comm/job_control.h"
#include "data/columns.h"
#include "data/shard_cache.h"
#include "job/device.h"
#include "job/places.h"
#include "kernels/sum_squares.h"
#include "model/hf.h"
#include "model/kinds.h"

#include <stdlib.h>
#include <string.h>

static void check_config(struct dt_problems *problems, const void *settings,
                         const struct dt_config *config)
{
    dt_job_require_model(problems, settings, config);
    dt_settings_check(problems, settings, config);
}

// Rank 0 reads file, environment and command line; other ranks get the resolved text.
static dt_status share_config(struct dt_job *job, char *const *words, int n_words)
{
    bool root = job->comm->info.rank == 0;
    char *text = NULL;
    size_t size = 0;
    dt_status status = DT_OK;
    if (root)
        status = dt_config_load(&dt_settings_table, check_config, words[0],
                                (const char *const *)words + 1, n_words - 1, &job->settings,
                                &job->config);
    if (root && status == DT_OK)
        status = dt_config_echo_text(job->config, &text, &size);
    void *bytes = text;
    int64_t length = (int64_t)size;
    DT_TRY_GOTO(status, out, dt_agree(job->comm, status));
    DT_TRY_GOTO(status, out, dt_broadcast_buffer(job->comm, &bytes, &length, 0));
    if (!root)
        status = dt_config_parse(&dt_settings_table, NULL, "the configuration of rank 0", bytes,
                                 length, NULL, NULL, 0, &job->settings, &job->config);
out:
    free(bytes);
    return status;
}

// From this many cores on, a rank leaves one core to the threads that read data and communicate,
// because a parallel loop waits for its slowest thread.
enum { SPARE_CORE_FROM = 8 };

static dt_status open_backend(struct dt_job *job, enum dt_purpose purpose)
{
    const struct dt_comm_info *info = &job->comm->info;
    bool widened;
    char name[DT_CONFIG_STRING_MAX];
    snprintf(name, sizeof name, "%s: run.threads",
             dt_config_find(job->config, "run.threads")->origin);
    DT_TRY(dt_agree(job->comm, dt_device_check_threads(name, job->settings.run.threads)));
    int threads = dt_cores_share(info->local_rank, info->local_size, &widened);
    if (job->settings.run.threads > 0)
        threads = (int)job->settings.run.threads;
    else if (threads >= SPARE_CORE_FROM)
        threads--;
    if (widened)
        dt_info("ranks were bound to one core each: each now uses its share of the host, %d cores",
                threads);
    dt_comm_set_timeout(job->comm, job->settings.comm.timeout_s);
    struct dt_device_choice_config config = {.comm = job->comm,
                                             .choice = purpose == DT_PURPOSE_ORDER
                                                           ? DT_DEVICE_CPU // only the data matter
                                                           : job->settings.run.device,
                                             .threads = threads,
                                             .share = job->settings.run.share_device};
    DT_TRY_NOTE(dt_device_open(&config, &job->backend, &job->ranks_on_device), "run.device = %s",
                dt_config_find(job->config, "run.device")->text);
    return DT_OK;
}

// Compares the devices and places of all ranks, if training needs them equal, and chooses the
// storage type.
static dt_status inspect_device(struct dt_job *job, enum dt_purpose purpose)
{
    struct dt_comm *comm = job->comm;
    struct dt_device_info info;
    struct dt_place mine = {0};
    int precision = job->settings.run.precision;
    bool print = purpose == DT_PURPOSE_TRAIN;
    DT_TRY(dt_backend_info(&job->backend, &info));
    if (print || purpose == DT_PURPOSE_CHECK) {
        DT_TRY(dt_agree(comm, comm->info.rank == 0 ? dt_job_check_device(job) : DT_OK));
        snprintf(mine.device, sizeof mine.device, "%.*s", (int)strcspn(info.name, ","), info.name);
        snprintf(mine.id, sizeof mine.id, "%s", info.id);
        dt_cores_list(mine.cpus, sizeof mine.cpus);
        mine.threads = info.threads;
        DT_TRY(dt_job_describe_device(job, mine.kind));
        DT_TRY(dt_places_check(comm, &mine, print, dt_job_sum_order(job) == DT_SUM_TREE,
                               job->settings.run.allow_unequal_nodes));
    }
    // A job has one precision: if hosts differ, auto is bf16 if that is faster on all.
    int64_t bf16 =
        precision == DT_PRECISION_BF16 || (precision == DT_PRECISION_AUTO && info.bf16_faster);
    DT_TRY(dt_allreduce(comm, &bf16, 1, DT_I64, DT_MIN));
    job->model.storage = bf16 ? DT_BF16 : DT_F32;
    return DT_OK;
}

// Checks that the data yield what the model reads.
static dt_status check_arrays(const struct dt_job *job, const char *key,
                              const struct dt_loader_config *loader)
{
    struct dt_array_list reads, yields;
    DT_TRY(dt_model_list(&job->model, NULL, &reads));
    dt_loader_arrays(loader, &yields);
    int targets = dt_array_list_find(&reads, "targets");
    if (targets >= 0 && loader->dataset->rules.whole)
        reads.arrays[targets].optional = true; // predictions need no targets
    const struct dt_array_spec *missing = dt_array_list_missing(&yields, &reads);
    bool weights = loader->dataset->rules.weights[0];
    if (weights &&
        (dt_array_list_find(&reads, "weights") < 0 || dt_array_list_find(&yields, "weights") < 0))
        return dt_config_reject(job->config, "data.weights", "remove the key",
                                "the losses of %s have no weights on %s data", job->model.heads,
                                loader->dataset->kind->name);
    if (!missing)
        return DT_OK;
    return DT_FAIL(DT_USER, "use data of another kind, or a model that reads this kind",
                   "the model (stem %s, blocks %s, head %s) reads an array %s of %s, %lld values "
                   "per position; %s (%s, %s) does not provide it",
                   job->model.stem, job->model.layers, job->model.heads, missing->name,
                   dt_dtype_name(missing->type), (long long)missing->width, key,
                   loader->dataset->kind->name, loader->dataset->shards[0].path);
}

dt_status dt_job_targets(const struct dt_model_config *model, struct dt_scan_rules *rules)
{
    struct dt_outputs outputs;
    DT_TRY(dt_model_outputs_of(model, &outputs));
    for (int k = 0; k < outputs.n; k++) {
        const struct dt_output *output = &outputs.list[k];
        struct dt_target *target = &rules->target[rules->n_targets];
        if (output->target_width == 0)
            continue;
        rules->n_targets++;
        snprintf(target->name, sizeof target->name, "%s", output->name);
        target->width = output->target_width;
        target->classes = output->classes;
    }
    return DT_OK;
}

static dt_status copy_name(const struct dt_job *job, const char *key, const char *value,
                           char name[DT_DATA_NAME])
{
    if (snprintf(name, DT_DATA_NAME, "%s", value) < DT_DATA_NAME)
        return DT_OK;
    return dt_config_reject(job->config, key, NULL, "longer than %d bytes", DT_DATA_NAME - 1);
}

// Warn if the share of window positions with frames is below this.
#define FILLED_WARN 0.5

// How to read the shards of training or validation.
static dt_status scan_rules(const struct dt_job *job, const char *mask_key, const char *mask,
                            const char *mask_default, struct dt_scan_rules *rules)
{
    const struct dt_settings *s = &job->settings;
    bool all = strcmp(mask, "all") == 0, automatic = strcmp(mask, "auto") == 0;
    *rules = (struct dt_scan_rules){.seq_len = s->data.seq_len,
                                    .vocab_size = job->model.vocab_size,
                                    .carry = s->data.carry_state,
                                    .stride = s->data.stride,
                                    .time_axis = s->data.time_axis,
                                    .val_fraction = s->data.val_fraction,
                                    .seed = (uint64_t)s->run.seed,
                                    .frame_width = job->model.frame_size}; // for synthetic:frames
    DT_TRY(copy_name(job, mask_key, all || automatic ? "" : mask, rules->mask));
    DT_TRY(copy_name(job, "data.episodes", s->data.episodes, rules->episodes));
    snprintf(rules->format, sizeof rules->format, "%s",
             dt_config_find(job->config, "data.format")->text);
    snprintf(rules->inputs, sizeof rules->inputs, "%s", s->data.inputs);
    snprintf(rules->targets, sizeof rules->targets, "%s", s->data.targets);
    snprintf(rules->weights, sizeof rules->weights, "%s", s->data.weights);
    snprintf(rules->mask_default, sizeof rules->mask_default, "%s", automatic ? mask_default : "");
    return dt_job_name_origin(job->config, dt_job_targets(&job->model, rules));
}

// The glob of validation shards ("": none), and how to read them.
static dt_status val_rules(const struct dt_job *job, const char **glob, struct dt_scan_rules *rules)
{
    const struct dt_settings *s = &job->settings;
    bool fraction = s->data.val_fraction > 0;
    *glob = fraction ? s->data.train : s->data.val;
    if (fraction && dt_reader_source(*glob))
        return dt_config_reject(job->config, "data.val_fraction", NULL, "%s has no episodes",
                                *glob);
    DT_TRY(fraction ? scan_rules(job, "data.mask", s->data.mask, "train", rules)
                    : scan_rules(job, "data.val_mask", s->data.val_mask, "valid", rules));
    rules->held_out = fraction;
    return DT_OK;
}

static dt_status fit_model(struct dt_job *job, const struct dt_dataset *train, bool trains)
{
    const struct dt_dataset *val = job->val;
    struct dt_model_data data = {.config = job->config,
                                 .path = train->shards[0].path,
                                 .unit = train->kind->unit,
                                 .frames = &train->layout,
                                 .inputs = train->inputs,
                                 .targets = train->targets,
                                 .bytes = train->bytes,
                                 .documents = job->settings.data.reset_token >= 0,
                                 .fresh = !job->resume[0] && !job->settings.run.init_from[0],
                                 .renames = trains && !job->resume[0]};
    if (val && memcmp(&val->bytes, &data.bytes, sizeof data.bytes) != 0)
        data.bytes = (struct dt_byte_columns){0};
    DT_TRY(dt_model_config_fit(&job->model, &data));
    return dt_job_name_origin(job->config, dt_model_config_check(&job->model));
}

// Refuses, or warns about, data that are probably not as their author intended.
static dt_status check_meaning(const struct dt_job *job)
{
    const struct dt_dataset *train = job->train;
    char both[DT_COLUMN_PATH + 64], beyond[DT_DATA_TEXT];
    double filled = dt_dataset_filled(train);
    if (dt_columns_beyond(train->targets, true, train->longest, beyond))
        return dt_config_reject(job->config, "data.targets", "shift them by fewer rows",
                                "%.200s: all targets of data.train are missing, since its longest "
                                "episode has %lld rows: there is nothing to learn",
                                beyond, (long long)train->longest);
    dt_columns_beyond(train->inputs, false, train->longest, beyond);
    if (beyond[0])
        dt_warn("data.inputs: %.200s is zero in every frame: the longest episode of data.train has "
                "%lld rows",
                beyond, (long long)train->longest);
    if (dt_columns_meet(train->inputs, train->targets, both))
        dt_warn("data.targets: %s is an input of the same frame, too (data.inputs): a model can "
                "copy it; a forecast is @+1, say",
                both);
    if (filled < FILLED_WARN)
        dt_warn("%.0f %% of what is trained is padding: the %lld episodes of data.train have %lld "
                "frames on average, windows data.seq_len = %lld",
                100 - 100 * filled, (long long)train->episodes,
                (long long)dt_ceil_div(train->tokens, train->episodes),
                (long long)job->settings.data.seq_len);
    return DT_OK;
}

// Identifies a shard's file; zeros: synthetic.
static struct file_id {
    dev_t device;
    ino_t inode;
} id_of(const struct dt_shard *shard)
{
    struct stat file = {0};
    if (!shard->kind->source && stat(shard->path, &file) != 0)
        file = (struct stat){0};
    return (struct file_id){file.st_dev, file.st_ino};
}

// The shard of data.train that is the same file as this shard of data.val, without lists that
// separate their episodes; NULL: none.
static const struct dt_shard *find_trained(const struct dt_dataset *train,
                                           const struct file_id *ids, const struct dt_shard *shard)
{
    struct file_id id = id_of(shard);
    for (int64_t i = 0; i < train->n_shards && id.inode != 0; i++) {
        const struct dt_shard *other = &train->shards[i];
        bool apart = shard->mask[0] && other->mask[0] && strcmp(shard->mask, other->mask) != 0;
        if (ids[i].device == id.device && ids[i].inode == id.inode && !apart)
            return other;
    }
    return NULL;
}

// Validation on training data would choose the checkpoint that memorised them best. Training
// refuses that; evaluating a checkpoint on them is allowed.
static dt_status check_leak(const struct dt_job *job, bool trains)
{
    const struct dt_dataset *train = job->train, *val = job->val;
    const struct dt_shard *found = NULL;
    struct file_id *ids;
    int64_t n = train->n_shards, at = 0;
    if (!val || val->rules.val_fraction > 0)
        return DT_OK;
    DT_TRY(DT_NEW(&ids, n, "%lld shards", (long long)n));
    for (int64_t i = 0; i < n; i++)
        ids[i] = id_of(&train->shards[i]);
    for (; !found && at < val->n_shards; at++)
        found = find_trained(train, ids, &val->shards[at]);
    free(ids);
    if (found && !trains)
        dt_warn("%s is a shard of data.train: this is no validation", val->shards[at - 1].path);
    if (!found || !trains)
        return DT_OK;
    return dt_config_reject(
        job->config, "data.val",
        !train->kind->schema ? "hold files out for validation (dtrain pack --val)"
        : found->mask[0]     ? "choose another list with data.val_mask"
                             : "hold every tenth episode out with data.val_fraction = 0.1 in its "
                               "place, or give a file that is not trained on; episodes in groups may "
                               "also be told apart by lists /mask/train and /mask/valid",
        "%s is also a shard of data.train: its loss would be that of what was trained on",
        val->shards[at - 1].path);
}

static dt_status scan_data(struct dt_job *job, bool trains)
{
    const struct dt_settings *s = &job->settings;
    struct dt_scan_rules rules;
    const char *glob;
    DT_TRY(scan_rules(job, "data.mask", s->data.mask, "train", &rules));
    rules.reverse_complement = s->data.reverse_complement;
    DT_TRY_NOTE(dt_dataset_scan(s->data.train, &rules, &job->train), "scanning data.train = %s",
                s->data.train);
    DT_TRY(val_rules(job, &glob, &rules));
    if (glob[0])
        DT_TRY_NOTE(dt_dataset_scan(glob, &rules, &job->val), "scanning data.val = %s", glob);
    if (job->val && rules.held_out && job->val->windows == 0)
        return dt_config_reject(job->config, "data.val_fraction", "raise it, or give data.val",
                                "%g holds none of the %lld episodes of data.train out",
                                s->data.val_fraction, (long long)job->train->episodes);
    DT_TRY(check_leak(job, trains));
    if (s->data.carry_state && (job->train->n_sources > 1 || (job->val && job->val->n_sources > 1)))
        return dt_config_reject(job->config, "data.carry_state", "give one source, without weights",
                                "true needs windows that follow each other, not a mixture");
    if (s->data.carry_state && job->model.direction == DT_DIRECTION_BOTH)
        return dt_config_reject(job->config, "data.carry_state", "set it to false",
                                "true, but model.direction = both reads each window from its end");
    if (job->val && job->val->layout.columns != job->train->layout.columns)
        return dt_config_reject(job->config, "data.val",
                                "name the datasets in data.inputs and data.targets",
                                "%s has different columns from %s", job->val->shards[0].path,
                                job->train->shards[0].path);
    DT_TRY(fit_model(job, job->train, trains));
    if (job->train->windows < s->data.batch)
        return dt_config_reject(
            job->config, "data.batch", "give more data, a smaller batch or a smaller seq_len",
            "data.train has %lld windows of %lld %s, fewer than data.batch = %lld",
            (long long)job->train->windows, (long long)s->data.seq_len, dt_model_unit(&job->model),
            (long long)s->data.batch);
    if (trains)
        DT_TRY(check_meaning(job));
    struct dt_loader_config train = dt_job_train_loader(job), val = dt_job_val_loader(job);
    DT_TRY(check_arrays(job, "data.train", &train));
    return job->val ? check_arrays(job, "data.val", &val) : DT_OK;
}

// Scans the data for predictions: only data.val, without loss weights.
static dt_status scan_whole(struct dt_job *job)
{
    struct dt_scan_rules rules;
    const char *glob;
    job->settings.data.weights[0] = 0;
    DT_TRY(val_rules(job, &glob, &rules));
    if (!glob[0])
        return DT_FAIL(DT_USER, "set data.val, or give --data GLOB", "data.val is empty");
    rules.stride = 0;
    rules.whole = true;
    rules.weights[0] = 0; // loss weights
    DT_TRY_NOTE(dt_dataset_scan(glob, &rules, &job->val), "scanning %s", glob);
    DT_TRY(fit_model(job, job->val, false));
    struct dt_loader_config loader = dt_job_val_loader(job);
    return check_arrays(job, "the data", &loader);
}

// Warn above this number of decodes per chunk: a core decodes about 150 MB/s, which keeps a device
// busy up to here.
enum { DECODES_WARN = 32 };

static dt_status broadcast_dataset(struct dt_comm *comm, struct dt_dataset **dataset)
{
    void *bytes = NULL;
    int64_t size = 0;
    bool root = comm->info.rank == 0;
    if (root && *dataset)
        DT_TRY(dt_dataset_pack(*dataset, &bytes, &size));
    dt_status status = dt_broadcast_buffer(comm, &bytes, &size, 0);
    if (status == DT_OK && !root && size > 0)
        status = dt_dataset_unpack(bytes, size, dataset);
    free(bytes);
    return status;
}

// Does what needs files: called on rank 0, which reports to the others.
static dt_status look(struct dt_job *job, enum dt_purpose purpose)
{
    bool trains = purpose == DT_PURPOSE_TRAIN || purpose == DT_PURPOSE_CHECK;
    if (purpose == DT_PURPOSE_TRAIN)
        DT_TRY(dt_run_folder_open(job->run_path, 30, &job->folder));
    DT_TRY(dt_job_resolve_resume(job, purpose));
    if (purpose == DT_PURPOSE_TRAIN)
        dt_run_folder_explain(&job->folder);
    DT_TRY(dt_job_resolve_model(job));
    if (purpose == DT_PURPOSE_WHOLE)
        return scan_whole(job);
    DT_TRY(scan_data(job, trains));
    if (trains || purpose == DT_PURPOSE_ORDER)
        DT_TRY(dt_job_resolve_mixture(job));
    if (trains)
        DT_TRY(dt_job_load_tokenizer(job));
    const struct dt_shard *shard;
    int64_t block = job->settings.data.block;
    int64_t times = dt_dataset_decodes(job->train, block, &shard);
    if (trains && job->settings.data.shuffle && times > DECODES_WARN)
        dt_warn("%s is stored in compressed chunks of %lld KiB; with data.block = %lld each is "
                "decoded about %lld times an epoch. If steps wait for input, store it without "
                "compression (dtrain pack, h5repack -f NONE) or in smaller chunks, or set "
                "data.block = %lld",
                shard->path, (long long)dt_ceil_div(shard->chunk_bytes, 1024), (long long)block,
                (long long)times, (long long)dt_ceil_div(block * times, DECODES_WARN));
    return DT_OK;
}

dt_status dt_job_resolve_buckets(struct dt_job *job)
{
    static const char key[] = "comm.bucket_mb";
    struct dt_params params;
    double *mb = &job->settings.comm.bucket_mb;
    char text[24];
    if (*mb > 0)
        return DT_OK;
    DT_TRY(dt_model_list(&job->model, &params, NULL));
    *mb = (double)dt_bucket_auto(params.elements, job->comm->info.size,
                                 dt_job_uses_device_comm(job)) /
          1e6;
    dt_params_free(&params);
    snprintf(text, sizeof text, "%g", *mb);
    return job->config
               ? dt_config_note(job->config, key, text, dt_config_find(job->config, key)->origin)
               : DT_OK;
}

// Checks optim.lr[PATTERN] against the names of the model's tensors.
static dt_status check_rates(const struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    struct dt_params params;
    struct dt_param_rate *rates;
    DT_TRY(dt_model_list(&job->model, &params, NULL));
    dt_status status = dt_params_rates(&params, s->optim.lr_groups, s->optim.lr,
                                       s->optim.name == DT_OPTIMIZER_MUON, &rates);
    dt_params_free(&params);
    if (status == DT_OK) {
        free(rates);
        return DT_OK;
    }
    struct dt_error error;
    dt_error_take(&error);
    return error.code == DT_USER
               ? dt_config_reject(job->config, "optim.lr_groups", error.hint, "%s", error.message)
               : (dt_error_restore(&error), error.code);
}

// Positions of an episode per pass with model.segment = auto; state is carried to the next pass.
enum { PREDICTED_AT_ONCE = 8192 };

dt_status dt_job_open(struct dt_comm *comm, enum dt_purpose purpose, char *const *words,
                      int n_words, struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    bool root = comm->info.rank == 0;
    *job = (struct dt_job){.comm = comm, .folder = {.lock = -1}, .started = dt_seconds()};
    DT_TRY(dt_places_check_program(comm));
    dt_comm_progress(comm, 0, "reading the configuration");
    DT_TRY(share_config(job, words, n_words));
    if (purpose != DT_PURPOSE_TRAIN && purpose != DT_PURPOSE_CHECK)
        job->settings.comm.context = 1;
    DT_TRY(dt_agree(comm, root ? dt_job_check_launch(job, purpose) : DT_OK));
    if (purpose == DT_PURPOSE_WHOLE && s->model.segment != 0 &&
        s->model.direction == DT_DIRECTION_FORWARD)
        job->settings.data.seq_len = dt_min_i64(
            s->data.seq_len, s->model.segment > 0 ? s->model.segment : PREDICTED_AT_ONCE);
    job->local_batch = s->data.batch / dt_job_groups(job);
    job->micro_batch = s->data.micro_batch > 0 ? s->data.micro_batch : job->local_batch;
    DT_TRY(dt_run_folder_path(s, job->run_path));

    dt_comm_progress(comm, 0, "opening the device");
    DT_TRY(open_backend(job, purpose));
    DT_TRY(inspect_device(job, purpose));

    dt_comm_progress(comm, 0, "scanning the data");
    DT_TRY(dt_agree(comm, root ? look(job, purpose) : DT_OK));
    DT_TRY(dt_broadcast(comm, &job->model, sizeof job->model, 0));
    DT_TRY(dt_broadcast(comm, job->resume, sizeof job->resume, 0));
    DT_TRY(dt_broadcast(comm, &job->settings.data.block, sizeof job->settings.data.block, 0));
    DT_TRY(dt_agree(comm, dt_job_resolve_buckets(job)));
    if (purpose == DT_PURPOSE_TRAIN || purpose == DT_PURPOSE_CHECK)
        DT_TRY(dt_agree(comm, check_rates(job)));
    DT_TRY(broadcast_dataset(comm, &job->train));
    DT_TRY(broadcast_dataset(comm, &job->val));
    dt_status status = DT_OK;
    if (job->train)
        status = dt_shard_cache_open(job->train, &job->train_shards);
    if (status == DT_OK && job->val)
        status = dt_shard_cache_open(job->val, &job->val_shards);
    DT_TRY(dt_agree(comm, status));
    if (!job->train)
        return DT_OK;

    job->train->may_differ = job->settings.data.allow_changed;
    job->steps_per_epoch =
        dt_mixture_epoch_steps(job->train->sources, job->train->n_sources, s->data.batch);
    job->steps = s->run.steps > 0 ? s->run.steps : s->run.epochs * job->steps_per_epoch;
    return dt_agree(comm, dt_settings_check_steps(s, job->config, job->steps));
}

void dt_job_close(struct dt_job *job)
{
    dt_run_folder_close(&job->folder);
    dt_shard_cache_close(job->train_shards);
    dt_shard_cache_close(job->val_shards);
    dt_dataset_free(job->train);
    dt_dataset_free(job->val);
    dt_backend_close(&job->backend);
    dt_config_free(job->config);
    dt_tokenizer_free(&job->tokenizer);
    free(job->mean);
    free(job->deviation);
    dt_job_free_blocks(job);
    *job = (struct dt_job){.folder = {.lock = -1}};
}

static dt_status alloc_host(void *context, int64_t bytes, void **memory)
{
    const struct dt_backend *backend = context;
    return backend->table->alloc_host(backend->device, bytes, memory);
}

static void free_host(void *context, void *memory)
{
    const struct dt_backend *backend = context;
    backend->table->free_host(backend->device, memory);
}

void dt_job_pin_ring(const struct dt_backend *backend, struct dt_loader_config *loader)
{
    loader->alloc_host = alloc_host;
    loader->free_host = free_host;
    loader->context = (void *)backend;
}

struct dt_loader_config dt_job_train_loader(const struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    bool as_stored = job->model.bytes.n > 0; // the model normalises
    struct dt_loader_config config = {.dataset = job->train,
                                      .shards = job->train_shards,
                                      .rules = {.seed = (uint64_t)s->run.seed,
                                                .vocab_size = job->model.vocab_size,
                                                .reset_token = s->data.reset_token,
                                                .reset_after = s->data.reset_after,
                                                .masking = dt_model_masking(&job->model),
                                                .verify = s->data.verify,
                                                .carry = s->data.carry_state,
                                                .reverse_complement = s->data.reverse_complement,
                                                .mean = as_stored ? NULL : job->mean,
                                                .deviation = as_stored ? NULL : job->deviation,
                                                .missing = job->mean,
                                                .frames_type = dt_model_frames_type(&job->model),
                                                .bytes = job->model.bytes},
                                      .batch = s->data.batch,
                                      .block = s->data.block,
                                      .shuffle = s->data.shuffle,
                                      .rank = job->comm->info.rank / (int)s->comm.context,
                                      .size = dt_job_groups(job),
                                      .run = dt_job_takes_turns(job) ? job->micro_batch : 0,
                                      .prefetch = s->data.prefetch};
    dt_job_pin_ring(&job->backend, &config);
    return config;
}

struct dt_loader_config dt_job_val_loader(const struct dt_job *job)
{
    struct dt_loader_config config = dt_job_train_loader(job);
    config.dataset = job->val;
    config.shards = job->val_shards;
    config.shuffle = false;
    config.sequential = true;
    config.run = 0;
    config.parts = job->settings.data.carry_state;
    config.rules.reverse_complement = false; // only for training
    return config;
}

enum dt_sharding dt_job_sharding(const struct dt_job *job)
{
    int choice = job->settings.optim.shard;
    return choice <= DT_SHARD_TRUE ? (enum dt_sharding)choice : (enum dt_sharding)(choice - 1);
}

// Gradients in a ring are summed over ranks first, then over micro-batches. To make this the same
// tree, micro-batches that are summed first must be consecutive in the batch.
bool dt_job_takes_turns(const struct dt_job *job)
{
    return dt_job_sharding(job) >= DT_SHARD_GRADIENTS && dt_job_sum_order(job) == DT_SUM_TREE;
}

bool dt_job_may_segment(const struct dt_job *job)
{
    return job->comm->info.size == 1 || !dt_job_takes_turns(job) ||
           job->model.direction == DT_DIRECTION_BOTH;
}

struct dt_model_shape dt_job_shape(const struct dt_job *job, bool training)
{
    int64_t ranks = job->comm->info.size, length = job->settings.data.seq_len;
    bool ring = training && ranks > 1 && dt_job_sharding(job) >= DT_SHARD_GRADIENTS;
    int64_t segment = dt_job_segment(job),
            own = dt_ceil_div(length, segment) / job->settings.comm.context * segment;
    bool by_part = job->model.direction == DT_DIRECTION_BOTH && segment < length;
    return (struct dt_model_shape){.sequences = job->micro_batch,
                                   .length = segment,
                                   .window = by_part ? own : 0,
                                   .context = by_part ? job->settings.comm.context : 0,
                                   .training = training,
                                   .ring_align = ring ? ranks * DT_NORM_BLOCK : 0,
                                   .ring_weights = ring && dt_job_sharding(job) >= DT_SHARD_WEIGHTS,
                                   .losses = training && job->train && job->train->mixture.n > 1};
}

dt_status dt_job_load_weights(struct dt_job *job, const char *dir, bool ema,
                              struct dt_snapshot *snapshot)
{
    const struct dt_checkpoint_arrays *host = &snapshot->host;
    dt_status status = DT_OK;
    if (job->comm->info.rank == 0 && dir[0])
        status =
            dt_hf_read_weights(dir, ema, host->params, host->model->tie_embeddings, host->weights);
    else if (job->comm->info.rank == 0)
        dt_params_init(host->params, (uint64_t)job->settings.run.seed, host->weights);
    DT_TRY(dt_agree(job->comm, status));
    DT_TRY(dt_job_normalize(job, host, !dir[0] && job->settings.data.normalize));
    return dt_snapshot_share_weights(snapshot, job->comm);
}
