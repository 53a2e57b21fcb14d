// One run, from its first step or its checkpoint to its end; iterate() is one step. All ranks take
// the same steps, and vote in each whether to stop or save.
#include "train/train.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/trace.h"
#include "checkpoint/saver.h"
#include "comm/job_control.h"
#include "job/gemm_algos.h"
#include "train/evaluate.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/profile.h"
#include "train/replicas.h"
#include "train/schedule.h"
#include "train/signals.h"
#include "train/spikes.h"
#include "train/step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trainer {
    struct dt_job *job;
    bool root;
    struct dt_model *model;
    struct dt_stepper *stepper;
    struct dt_profile profile;
    struct dt_snapshot snapshot;
    struct dt_loader *loader;
    struct dt_metrics *metrics; // root only
    struct dt_lr_schedule schedule;
    struct dt_replicas replicas;   // with comm.verify_replicas
    struct dt_skips left_out;      // state.left_out
    struct dt_trainer_state state; // after the last step that was collected
    struct dt_saver *saver;
    char checkpoints[DT_PATH]; // where it saves them
    bool save_owed;      // one became due while another was being written, or after a bad step
    bool config_changes; // root: config.resolved.ini is written with the first step
};

static struct dt_trainer_state fresh_state(const struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    struct dt_trainer_state state = {.order = {.seed = s->run.seed,
                                               .batch = s->data.batch,
                                               .seq_len = s->data.seq_len,
                                               .block = dt_job_block(job),
                                               .reset_token = s->data.reset_token,
                                               .shuffle = s->data.shuffle,
                                               .reset_after = s->data.reset_after,
                                               .carry_state = s->data.carry_state},
                                     .storage = (int)job->model.storage};
    const struct dt_scan_rules *rules = &job->train->rules;
    if (job->train->layout.target_width > 0) {
        state.order.stride = job->train->shards[0].stride;
        snprintf(state.order.inputs, sizeof state.order.inputs, "%s", rules->inputs);
        snprintf(state.order.targets, sizeof state.order.targets, "%s", rules->targets);
        snprintf(state.order.mask, sizeof state.order.mask, "%s", s->data.mask);
    }
    return state;
}

// A run that went back would save checkpoints older than those of its first course: the next
// run.resume = auto would pick the latter, and pruning would remove the former.
static dt_status check_branch(const struct trainer *t)
{
    int64_t last;
    DT_TRY(dt_checkpoint_last_step(t->job->folder.checkpoints, INT64_MAX, &last));
    if (!dt_job_resume_is_named(t->job) || last <= t->state.step)
        return DT_OK;
    return dt_config_reject(t->job->config, "run.resume",
                            "set run.resume = auto to resume from the newest, remove the newer "
                            "ones, or give the branch another run.name",
                            "%s is at step %lld, but %s has a newer one, at step %lld",
                            t->job->resume, (long long)t->state.step, t->job->folder.checkpoints,
                            (long long)last);
}

// A best checkpoint that is not there (it was not kept, or not copied) can be improved on by any.
static dt_status check_best(struct trainer *t)
{
    char path[DT_PATH];
    DT_TRY(
        dt_path(path, "%s/step-%08lld", t->job->folder.checkpoints, (long long)t->state.best_step));
    if (t->state.best_step > 0 && t->state.best_step != t->state.step && !dt_is_dir(path)) {
        dt_warn("%s, the best checkpoint so far, is missing: the next evaluation counts as the "
                "best",
                path);
        t->state.best_step = 0;
    }
    return DT_OK;
}

static void warn_of_device(const char *saved, const char *now)
{
    char was[DT_DEVICE_TEXT] = "", is[DT_DEVICE_TEXT] = "";
    if (!saved[0] || strcmp(saved, now) == 0)
        return;
    dt_append_difference(was, sizeof was, saved, now);
    dt_append_difference(is, sizeof is, now, saved);
    dt_warn("the checkpoint was trained with %s, this job runs with %s: training continues, but "
            "its results may differ in their last bits from those of the same device and libraries",
            was, is);
}

static dt_status load_on_root(struct trainer *t)
{
    struct dt_trainer_state expected = t->state;
    DT_TRY(
        dt_checkpoint_load(t->job->resume, &t->snapshot.host, &expected, t->job->train, &t->state));
    t->state.storage = expected.storage;
    warn_of_device(t->state.device, expected.device);
    memcpy(t->state.device, expected.device, sizeof t->state.device);
    DT_TRY(check_branch(t));
    if (t->job->settings.checkpoint.best)
        return check_best(t);
    return DT_OK;
}

// What rank 0 cannot send: the states that are this rank's alone.
static dt_status load_pieces(struct trainer *t)
{
    const struct dt_checkpoint_arrays *host = &t->snapshot.host;
    if (!dt_pieces_are_spread(&host->states.pieces, host->params->elements))
        return DT_OK;
    return dt_checkpoint_load_states(t->job->resume, host);
}

// Rank 0 reads job->resume and sends it to all.
static dt_status resume(struct trainer *t)
{
    struct dt_comm *comm = t->job->comm;
    dt_comm_progress(comm, 0, "loading a checkpoint");
    DT_TRY(dt_agree(comm, t->root ? load_on_root(t) : DT_OK));
    DT_TRY(dt_broadcast(comm, t->job->resume, sizeof t->job->resume, 0)); // after a rollback
    DT_TRY(dt_agree(comm, t->root ? DT_OK : load_pieces(t)));
    DT_TRY(dt_broadcast(comm, &t->state, sizeof t->state, 0));
    DT_TRY(dt_job_normalize(t->job, &t->snapshot.host, false));
    DT_TRY(dt_snapshot_share(&t->snapshot, comm));
    DT_TRY(dt_carry_share(dt_stepper_carry(t->stepper), comm));
    DT_TRY(dt_optimizer_restore(dt_stepper_optimizer(t->stepper), t->state.updates,
                                t->state.skipped_in_a_row));
    DT_TRY(dt_skips_parse(t->state.left_out, &t->left_out));
    dt_info("resuming from %s at step %lld", t->job->resume, (long long)t->state.step);
    return DT_OK;
}

static bool is_out_of_patience(const struct trainer *t)
{
    int64_t patience = t->job->settings.run.patience;
    return patience > 0 && t->state.evaluations_since_best >= patience;
}

static bool is_trained(const struct trainer *t)
{
    return t->state.step >= t->job->steps || is_out_of_patience(t);
}

static dt_status open_sinks(struct trainer *t)
{
    const struct dt_job *job = t->job;
    const struct dt_settings *s = &job->settings;
    struct dt_metrics_config config = {.folder = job->run_path,
                                       .resume_step = t->state.step,
                                       .first_step = t->state.step + 1,
                                       .steps = job->steps,
                                       .every = s->log.every,
                                       .tensorboard = s->log.tensorboard,
                                       .console = (enum dt_console_choice)s->log.console,
                                       .flops_per_token = dt_model_flops_per_token(&job->model),
                                       .unit = dt_model_unit(&job->model)};
    return t->root ? dt_metrics_open(&config, &t->metrics) : DT_OK;
}

static dt_status open_loader(struct trainer *t)
{
    struct dt_loader_config config = dt_job_train_loader(t->job);
    config.skips = t->left_out;
    return t->state.step < t->job->steps ? dt_loader_open(&config, t->state.step, &t->loader)
                                         : DT_OK;
}

static dt_status open_metrics(struct trainer *t)
{
    struct dt_job *job = t->job;
    dt_run_folder_step(t->state.step);
    dt_run_folder_best(t->state.best_step, t->state.best_loss);
    if (t->root && is_trained(t))
        DT_TRY(dt_run_folder_check_trained(&job->folder, job->config, job->resume));
    else if (t->root && job->resume[0])
        dt_run_folder_changes(&job->folder, job->config, job->resume);
    t->config_changes = t->root && job->resume[0];
    if (t->root) {
        if (!t->config_changes)
            DT_TRY(dt_run_folder_config(&job->folder, job->config));
        DT_TRY(dt_run_folder_state(&job->folder, "running", t->state.step, ""));
    }
    dt_run_folder_watch(job->run_path);
    return open_sinks(t);
}

static dt_status create_local(struct trainer *t)
{
    struct dt_job *job = t->job;
    struct dt_model_shape shape = dt_job_shape(job, true);
    DT_TRY(dt_model_create(&job->backend, &job->model, &shape, &t->model));
    struct dt_stepper_config stepper = dt_job_stepper(job);
    stepper.times = t->profile.times;
    DT_TRY(dt_stepper_create(&job->backend, t->model, &stepper, &t->stepper));
    DT_TRY(dt_snapshot_create(&job->backend, t->model, &dt_stepper_optimizer(t->stepper)->states,
                              t->root, &t->snapshot));
    if (job->settings.comm.verify_replicas > 0)
        DT_TRY(dt_replicas_create(&job->backend, t->model,
                                  &dt_stepper_optimizer(t->stepper)->states, job->comm->info.size,
                                  &t->replicas));
    const struct dt_carry *carry = dt_stepper_carry(t->stepper);
    t->snapshot.host.slots = carry->backend ? &carry->slots : NULL;
    return DT_OK;
}

static dt_status sync_metrics(void *trainer)
{
    return dt_metrics_sync(((struct trainer *)trainer)->metrics);
}

static dt_status note_saved(void *trainer, int64_t step)
{
    return dt_run_folder_state(&((struct trainer *)trainer)->job->folder, "running", step, "");
}

static dt_status log_saved(void *trainer, const struct dt_saved *saved)
{
    const struct dt_metric_event event = {.kind = DT_METRIC_CHECKPOINT,
                                          .step = saved->step,
                                          .path = saved->path,
                                          .stall_ms = saved->stall_ms,
                                          .write_ms = saved->write_ms};
    return dt_metrics_write(((struct trainer *)trainer)->metrics, &event);
}

static dt_status create_saver(struct trainer *t)
{
    const struct dt_settings *s = &t->job->settings;
    DT_TRY(dt_path(t->checkpoints, "%s/checkpoints", t->job->run_path)); // any rank writes there
    const struct dt_saver_config config = {.comm = t->job->comm,
                                           .snapshot = &t->snapshot,
                                           .train = t->job->train,
                                           .dir = t->checkpoints,
                                           .keep = s->checkpoint.keep,
                                           .best = s->checkpoint.best,
                                           .timeout_s = s->comm.timeout_s,
                                           .state = &t->state,
                                           .sync = sync_metrics,
                                           .published = note_saved,
                                           .log = log_saved,
                                           .context = t};
    return dt_saver_create(&config, &t->saver);
}

// Model and step, weights, the run's files, the loader.
static dt_status start(struct trainer *t)
{
    struct dt_job *job = t->job;
    int ranks = job->comm->info.size;
    DT_TRY(dt_agree(job->comm, dt_train_check_resources(job)));
    DT_TRY(dt_agree(job->comm, dt_profile_open(job, &t->profile)));
    dt_comm_progress(job->comm, 0, "choosing GEMM algorithms");
    DT_TRY(dt_gemm_algos_apply(job));
    dt_comm_progress(job->comm, 0, "building the model");
    DT_TRY(dt_agree(job->comm, create_local(t)));
    DT_TRY(dt_stepper_connect(t->stepper));
    if (dt_job_wants_selftest(job))
        dt_info("collectives give right results on known values (comm.selftest)");

    t->state = fresh_state(job);
    DT_TRY(dt_agree(job->comm, dt_job_describe_device(job, t->state.device)));
    t->schedule = dt_lr_schedule(&job->settings, job->steps);
    if (job->resume[0])
        DT_TRY(resume(t));
    else {
        DT_TRY(dt_job_load_weights(job, job->settings.run.init_from, false, &t->snapshot));
        DT_TRY(dt_optimizer_start_ema(dt_stepper_optimizer(t->stepper)));
    }

    dt_status status = open_metrics(t);
    DT_TRY(dt_agree(job->comm, status == DT_OK ? open_loader(t) : status));

    struct dt_device_info device;
    DT_TRY(dt_backend_info(&job->backend, &device));
    if (t->state.step >= job->steps)
        dt_info("%s has already trained its %lld steps: increase run.steps to train further",
                job->run_path, (long long)job->steps);
    else
        dt_info("%s: %.2f M parameters, %s, %d %s on %.*s, %lld steps of %lld %s", job->run_path,
                (double)dt_model_params(t->model)->count * 1e-6, dt_dtype_name(job->model.storage),
                ranks, ranks == 1 ? "rank" : "ranks", (int)strcspn(device.name, ","), device.name,
                (long long)job->steps,
                (long long)(job->settings.data.batch * job->settings.data.seq_len),
                dt_model_unit(&job->model));
    if (job->settings.optim.shard && ranks == 1)
        dt_info("optim.shard = true changes nothing on one rank");
    return create_saver(t);
}

// Begins to save the state after the last step, with none in flight; `waits`: until it is saved,
// which must succeed.
static dt_status save(struct trainer *t, bool waits)
{
    double start = dt_seconds();
    dt_comm_progress(t->job->comm, t->state.step, "saving a checkpoint");
    DT_TRY(dt_saver_settle(t->saver, DT_WAIT));
    DT_TRY(dt_carry_gather(dt_stepper_carry(t->stepper), t->job->comm));
    uint64_t filling = dt_trace_begin();
    DT_TRY(dt_snapshot_fill(&t->snapshot));
    dt_trace_end(DT_LANE_CHECKPOINT, "snapshot", filling, 0);
    dt_stepper_hold(t->stepper, t->snapshot.filled);
    DT_TRY(dt_saver_begin(t->saver, start));
    return waits ? dt_saver_settle(t->saver, DT_WAIT_AND_FAIL) : DT_OK;
}

// With optim.rollback a run can return to where it started, unless it has a checkpoint from before
// its latest bad steps. Those that a named checkpoint counted are of another course, to which this
// one cannot return.
static dt_status save_start(struct trainer *t)
{
    struct dt_comm *comm = t->job->comm;
    int64_t place = -1;
    dt_status status = DT_OK;
    if (t->job->settings.optim.rollback == 0)
        return DT_OK;
    if (t->root && !dt_job_resume_is_named(t->job))
        status = dt_checkpoint_last_step(t->job->folder.checkpoints,
                                         t->state.step - t->state.bad_in_a_row, &place);
    DT_TRY(dt_agree(comm, status));
    DT_TRY(dt_broadcast(comm, &place, sizeof place, 0));
    if (place >= 0)
        return DT_OK;
    t->state.bad_in_a_row = 0;
    return save(t, false);
}

// Those of a policy, which have metrics of their own; else NULL.
static const struct dt_outputs *heads_of(const struct trainer *t)
{
    return dt_model_is_policy(&t->job->model) ? dt_model_outputs(t->model) : NULL;
}

static dt_status evaluate(struct trainer *t, struct dt_loss_sum *total)
{
    struct dt_evaluation e = {.job = t->job,
                              .model = t->model,
                              .input = dt_stepper_input(t->stepper),
                              .carry = dt_stepper_carry(t->stepper),
                              .max_batches = t->job->settings.log.eval_batches,
                              .stream = dt_stepper_stream(t->stepper),
                              .times = t->profile.times};
    DT_TRY(dt_evaluate(&e));
    t->profile.batches += e.batches;
    t->profile.timed_batches += e.timed;
    *total = e.total;
    return DT_OK;
}

// The loss of the moving average of the weights.
static dt_status evaluate_ema(struct trainer *t, double *loss)
{
    struct dt_optimizer *optimizer = dt_stepper_optimizer(t->stepper);
    struct dt_loss_sum total;
    DT_TRY(dt_optimizer_swap_ema(optimizer, dt_stepper_stream(t->stepper)));
    DT_TRY(evaluate(t, &total));
    *loss = total.loss / total.counted;
    DT_TRY(dt_optimizer_swap_ema(optimizer, dt_stepper_stream(t->stepper)));
    return dt_stream_sync(&t->job->backend, dt_stepper_stream(t->stepper)); // a save may follow
}

// *improved: the loss is the lowest so far; with a moving average, its loss.
static dt_status validate(struct trainer *t, bool *improved)
{
    struct dt_loss_sum total;
    *improved = false;
    if (!t->job->val)
        return DT_OK;
    dt_comm_progress(t->job->comm, t->state.step, "validation");
    DT_TRY(evaluate(t, &total));
    struct dt_metric_event event = {.kind = DT_METRIC_EVAL,
                                    .step = t->state.step,
                                    .loss = total.loss / total.counted,
                                    .perplexity = exp(total.loss / total.counted),
                                    .has_perplexity = !heads_of(t),
                                    .has_ema = t->job->settings.optim.ema > 0,
                                    .tokens = (int64_t)total.counted,
                                    .heads = heads_of(t),
                                    .sum = &total};
    if (event.has_ema)
        DT_TRY(evaluate_ema(t, &event.ema_loss));
    double loss = event.has_ema ? event.ema_loss : event.loss;
    *improved = isfinite(loss) && (t->state.best_step == 0 || loss < t->state.best_loss);
    t->state.evaluations++;
    t->state.evaluations_since_best++;
    if (*improved) {
        t->state.best_step = t->state.step;
        t->state.best_loss = loss;
        t->state.evaluations_since_best = 0;
    }
    dt_run_folder_best(t->state.best_step, t->state.best_loss);
    return dt_metrics_write(t->metrics, &event);
}

static double resident_mb(void)
{
    char kilobytes[64];
    dt_proc_value("/proc/self/status", "VmRSS", kilobytes, sizeof kilobytes);
    return strtod(kilobytes, NULL) * 1024 / 1e6;
}

static bool must_roll_back(const struct trainer *t)
{
    int64_t most = t->job->settings.optim.rollback;
    return most > 0 && t->state.bad_in_a_row >= most;
}

static int64_t tokens_of_step(const struct trainer *t)
{
    return t->job->settings.data.batch * t->job->settings.data.seq_len;
}

// z: standard deviations of the step's loss above the recent ones (spikes.h).
static bool is_spike(const struct trainer *t, double z)
{
    return z > t->job->settings.optim.spike;
}

static void count_step(struct trainer *t, const struct dt_step_result *result, double z)
{
    const struct dt_update_control *update = &result->control;
    struct dt_trainer_state *state = &t->state;
    t->profile.steps++;
    t->profile.timed_steps += result->timed;
    state->step++;
    state->tokens += tokens_of_step(t);
    state->updates = update->updates;
    state->skips += update->skip;
    state->skipped_in_a_row = update->skipped_in_a_row;
    state->bad_in_a_row = update->skip || is_spike(t, z) ? state->bad_in_a_row + 1 : 0;
    dt_loss_count(&state->losses, update->loss, t->job->settings.optim.spike);
    dt_run_folder_step(state->step);
}

static dt_status log_step(struct trainer *t, const struct dt_step_result *result, double z)
{
    const struct dt_job *job = t->job;
    const struct dt_update_control *update = &result->control;
    struct dt_metric_event event = {.kind = DT_METRIC_TRAIN,
                                    .step = t->state.step,
                                    .epoch = dt_skips_batch(&t->left_out, t->state.step - 1) /
                                             job->steps_per_epoch,
                                    .tokens = t->state.tokens,
                                    .loss = update->loss,
                                    .grad_norm = update->grad_norm,
                                    .lr = result->lr,
                                    .step_ms = result->seconds * 1e3,
                                    .tokens_per_s = (double)tokens_of_step(t) / result->seconds,
                                    .data_wait_ms = result->data_wait_ms,
                                    .comm_wait_ms = result->comm_wait_ms,
                                    .idle_ms = result->idle_ms,
                                    .loss_z = z,
                                    .skipped = update->skip,
                                    .heads = heads_of(t),
                                    .sum = &result->sum};
    if (t->root)
        event.memory_mb = job->backend.table->unified
                              ? resident_mb()
                              : (double)dt_memory_in_use(&job->backend) / 1e6;
    return dt_metrics_write(t->metrics, &event);
}

static void warn_of_bad_step(const struct trainer *t, const struct dt_update_control *update,
                             double z)
{
    const char *unit = dt_model_unit(&t->job->model);
    if (update->skip && update->counted == 0)
        dt_warn("step %lld skipped: none of its %s counts in the loss (each label is -100)",
                (long long)t->state.step, unit);
    else if (update->skip)
        dt_warn("step %lld skipped: loss %g, gradient norm %g, %.0f %s counted",
                (long long)t->state.step, update->loss, update->grad_norm, update->counted, unit);
    if (is_spike(t, z) && t->job->settings.optim.rollback > 0)
        dt_warn("step %lld spiked: its loss %g is %.1f standard deviations above the recent ones",
                (long long)t->state.step, update->loss, z);
}

static dt_status check_skipped(const struct trainer *t, const struct dt_update_control *update)
{
    int64_t most = t->job->settings.optim.max_skipped;
    dt_status status = DT_OK;
    if (update->skipped_in_a_row < most || must_roll_back(t))
        return DT_OK;
    if (t->root)
        status = DT_FAIL(
            DT_USER,
            "lower optim.lr, increase optim.warmup_steps, or check the data of these steps",
            "%d steps in a row were skipped (optim.max_skipped = %lld), the last at step %lld: "
            "loss %g, gradient norm %g",
            update->skipped_in_a_row, (long long)most, (long long)t->state.step, update->loss,
            update->grad_norm);
    return dt_agree(t->job->comm, status);
}

// Waits for the oldest step in flight, counts and logs it. Its outcome is the same on every rank.
static dt_status collect(struct trainer *t)
{
    struct dt_step_result result;
    DT_TRY(dt_stepper_collect(t->stepper, &result));
    dt_trace_phase("logging");
    double z = dt_loss_z(&t->state.losses, result.control.loss);
    count_step(t, &result, z);
    if (t->config_changes)
        DT_TRY(dt_run_folder_config(&t->job->folder, t->job->config));
    t->config_changes = false;
    DT_TRY(log_step(t, &result, z));
    warn_of_bad_step(t, &result.control, z);
    return check_skipped(t, &result.control);
}

// A model that stays bad whatever it is given would return again and again. `batch` is among those
// that are left out.
static dt_status check_left_out(const struct trainer *t, const struct dt_skips *left_out,
                                int64_t batch)
{
    int64_t most = t->job->settings.optim.max_skipped, i = 0;
    while (left_out->ranges[i].end <= batch)
        i++;
    const struct dt_span *range = &left_out->ranges[i];
    if (range->end - range->first <= most)
        return DT_OK;
    return DT_FAIL(
        DT_USER, "lower optim.lr, increase optim.warmup_steps, or check the data of these batches",
        "%lld bad batches in a row, %lld to %lld, are more than optim.max_skipped = %lld",
        (long long)(range->end - range->first), (long long)range->first,
        (long long)(range->end - 1), (long long)most);
}

// What a rollback does to the run's files: no checkpoint after those that it may return to, no line
// of the steps after it. t->job->resume gets the checkpoint's path.
static dt_status return_on_root(struct trainer *t, int64_t first_bad)
{
    const char *dir = t->job->folder.checkpoints;
    DT_TRY(dt_checkpoint_cut(dir, first_bad - 1));
    return dt_checkpoint_newest(dir, t->job->resume);
}

// After optim.rollback bad steps in a row: on from the checkpoint before them with the batches that
// follow theirs. The checkpoint is saved again with a record of that, so a resumed run agrees.
static dt_status roll_back(struct trainer *t)
{
    struct dt_job *job = t->job;
    struct dt_skips left_out = t->left_out;
    int64_t last = t->state.step, first_bad = last - t->state.bad_in_a_row + 1;
    int64_t rollbacks = t->state.rollbacks + 1;
    struct dt_step_result dropped;
    DT_TRY(dt_saver_settle(t->saver, DT_WAIT));
    while (dt_stepper_in_flight(t->stepper) > 0)
        DT_TRY(dt_stepper_collect(t->stepper, &dropped));
    dt_comm_progress(job->comm, last, "returning to a checkpoint");
    int64_t batch = dt_skips_batch(&t->left_out, first_bad - 1);
    dt_status status = dt_skips_add(&left_out, batch, dt_skips_batch(&t->left_out, last - 1) + 1);
    if (status == DT_OK && t->root)
        status = check_left_out(t, &left_out, batch);
    if (status == DT_OK && t->root)
        status = return_on_root(t, first_bad);
    DT_TRY_NOTE(
        dt_agree(job->comm, status),
        "returning to the checkpoint before step %lld, the first of %lld bad steps in a row "
        "(rollback %lld)",
        (long long)first_bad, (long long)(last - first_bad + 1), (long long)rollbacks);

    dt_loader_close(t->loader);
    t->loader = NULL;
    dt_metrics_close(t->metrics);
    t->metrics = NULL;
    DT_TRY(resume(t));
    t->left_out = left_out;
    t->state.rollbacks = rollbacks;
    t->save_owed = false;
    dt_skips_text(&left_out, t->state.left_out);
    dt_run_folder_step(t->state.step);
    status = open_sinks(t);
    DT_TRY(dt_agree(job->comm, status == DT_OK ? open_loader(t) : status));
    DT_TRY(save(t, true));
    if (first_bad == last)
        dt_warn("step %lld was bad: training continues from step %lld without its batch",
                (long long)last, (long long)t->state.step);
    else
        dt_warn("steps %lld to %lld were bad: training continues from step %lld without their "
                "batches",
                (long long)first_bad, (long long)last, (long long)t->state.step);
    struct dt_metric_event event = {.kind = DT_METRIC_ROLLBACK,
                                    .step = t->state.step,
                                    .from = last,
                                    .left_out = t->state.left_out};
    return dt_metrics_write(t->metrics, &event);
}

static bool is_due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static dt_status iterate(struct trainer *t, bool *stopped)
{
    const struct dt_job *job = t->job;
    const struct dt_settings *s = &job->settings;

    // Launch the next step. A GPU may still be busy with the step before: it never waits for this.
    int64_t step = t->state.step + dt_stepper_in_flight(t->stepper) + 1;
    dt_profile_begin_step(&t->profile, step);
    DT_TRY(dt_stepper_launch(t->stepper, t->loader, step, dt_lr_at(&t->schedule, step)));

    // Vote, while the device works: was any rank asked to stop, does rank 0 want a checkpoint, is
    // the one before complete?
    struct {
        double stop, save, report;
        struct dt_save_votes saver;
    } votes = {dt_signals_pending() != 0,
               t->root && dt_saver_is_overdue(t->saver, 60 * s->checkpoint.minutes),
               dt_signals_report_wanted(), dt_saver_vote(t->saver)};
    dt_trace_phase("agreeing on stops and saves");
    DT_TRY(dt_allreduce(job->comm, &votes, sizeof votes / sizeof(double), DT_F64, DT_SUM));
    DT_TRY(dt_saver_advance(t->saver, &votes.saver));
    dt_run_folder_best(t->state.best_step, t->state.best_loss);
    if (votes.report > 0)
        DT_TRY(dt_profile_write(&t->profile));

    // What this step ends with. Whoever asks to stop may leave little time: no validation then.
    bool last = step == job->steps, stop = votes.stop > 0 && !last;
    bool verifies = is_due(step, s->comm.verify_replicas);
    bool validates = last || (is_due(step, s->log.eval_every) && !stop);
    bool must_save = last || (stop && s->checkpoint.on_signal);
    t->save_owed |= is_due(step, s->checkpoint.every) || votes.save > 0;
    if (t->save_owed)
        DT_TRY(dt_saver_settle(t->saver, DT_WAIT_BRIEFLY));
    bool saves = must_save || (t->save_owed && dt_saver_is_free(t->saver));

    // Collect the oldest step, and those after it where something needs the end of this one.
    bool traces = dt_profile_traces(&t->profile, step) || dt_profile_traces(&t->profile, step + 1);
    bool ends = verifies || validates || saves || stop || traces;
    while (dt_stepper_in_flight(t->stepper) > (ends ? 0 : dt_stepper_depth(t->stepper) - 1) &&
           !must_roll_back(t))
        DT_TRY(collect(t));
    if (must_roll_back(t)) {
        DT_TRY(roll_back(t));
        *stopped = stop;
        return dt_profile_end_step(&t->profile, step, *stopped);
    }
    if (s->optim.rollback > 0 && t->state.bad_in_a_row > 0) // no place to return to
        saves = must_save;

    if (verifies)
        DT_TRY(dt_replicas_compare(&t->replicas, job->comm, t->state.step));
    bool improved = false;
    if (validates)
        DT_TRY(validate(t, &improved));
    bool gives_up = !last && is_out_of_patience(t);
    if (saves || gives_up || (improved && s->checkpoint.best)) {
        t->save_owed = false;
        DT_TRY(save(t, must_save || gives_up));
    }
    *stopped = stop || gives_up;
    return dt_profile_end_step(&t->profile, step, last || *stopped);
}

// Whether a signal came before the first step, to any rank.
static dt_status stops_early(struct trainer *t, bool *stops)
{
    int64_t asked = dt_signals_pending() != 0;
    DT_TRY(dt_allreduce(t->job->comm, &asked, 1, DT_I64, DT_MAX));
    *stops = asked != 0;
    return DT_OK;
}

static dt_status finish(struct trainer *t, bool stopped)
{
    const struct dt_job *job = t->job;
    bool gave_up = stopped && is_out_of_patience(t);
    char reason[256] = "";
    if (gave_up)
        snprintf(reason, sizeof reason,
                 "the validation loss has not improved on %.6g (step %lld) in %lld evaluations "
                 "(run.patience)",
                 t->state.best_loss, (long long)t->state.best_step,
                 (long long)t->state.evaluations_since_best);
    else if (stopped)
        snprintf(reason, sizeof reason, "%s", dt_signals_name(dt_signals_pending()));
    if (t->root)
        DT_TRY(dt_run_folder_state(&job->folder, stopped ? "stopped" : "complete", t->state.step,
                                   reason));
    dt_run_folder_watch(NULL);
    DT_TRY(dt_profile_write(&t->profile));
    if (gave_up)
        dt_info("stopped after step %lld of %lld: %s; increase run.patience to train further",
                (long long)t->state.step, (long long)job->steps, reason);
    else if (stopped)
        dt_info("stopped by %s after step %lld of %lld: the same command %s", reason,
                (long long)t->state.step, (long long)job->steps,
                t->state.step == 0                   ? "starts it"
                : job->settings.checkpoint.on_signal ? "resumes from there"
                                                     : "resumes from its last checkpoint");
    return DT_OK;
}

dt_status dt_train(struct dt_job *job)
{
    struct trainer t = {.job = job, .root = job->comm->info.rank == 0};
    bool stopped = false;
    dt_status status;
    DT_TRY_GOTO(status, out, start(&t));
    if (t.state.step < job->steps)
        DT_TRY_GOTO(status, out, stops_early(&t, &stopped));
    stopped |= t.state.step < job->steps && is_out_of_patience(&t);
    if (t.state.step < job->steps && !stopped)
        DT_TRY_GOTO(status, out, save_start(&t));
    while (t.state.step < job->steps && !stopped)
        DT_TRY_GOTO(status, out, iterate(&t, &stopped));
    DT_TRY_GOTO(status, out, dt_saver_settle(t.saver, DT_WAIT_AND_FAIL));
    DT_TRY_GOTO(status, out, finish(&t, stopped));
out:
    dt_comm_end_if_alone(job->comm, status);
    dt_saver_destroy(t.saver);
    dt_stepper_destroy(t.stepper); // first: a step in flight may read the loader's memory
    dt_loader_close(t.loader);
    dt_metrics_close(t.metrics);
    dt_snapshot_destroy(&t.snapshot);
    dt_replicas_destroy(&t.replicas);
    dt_model_destroy(t.model);
    dt_profile_close(&t.profile);
    return status;
}
