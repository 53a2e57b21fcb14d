// Starts a run: goes from an open job to the model, weights and files of its next step, fresh or
// from a checkpoint. All ranks fail together.
#include "train/evaluate.h"
#include "train/trainer.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/job_control.h"
#include "train/memory.h"

#include <stdio.h>
#include <string.h>

static struct dt_trainer_state fresh_state(const struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    struct dt_trainer_state state = {.order = {.seed = s->run.seed,
                                               .batch = s->data.batch,
                                               .seq_len = s->data.seq_len,
                                               .block = s->data.block,
                                               .reset_token = s->data.reset_token,
                                               .shuffle = s->data.shuffle,
                                               .reset_after = s->data.reset_after,
                                               .carry_state = s->data.carry_state,
                                               .reverse_complement = s->data.reverse_complement},
                                     .storage = (int)job->model.storage};
    const struct dt_scan_rules *rules = &job->train->rules;
    if (job->train->layout.target_width > 0) {
        state.order.stride = job->train->shards[0].stride;
        snprintf(state.order.inputs, sizeof state.order.inputs, "%s", rules->inputs);
        snprintf(state.order.targets, sizeof state.order.targets, "%s", rules->targets);
        state.order.time_axis = rules->time_axis;
        state.order.val_fraction = rules->val_fraction;
        snprintf(state.order.episodes, sizeof state.order.episodes, "%s", rules->episodes);
        snprintf(state.order.weights, sizeof state.order.weights, "%s", rules->weights);
        snprintf(state.order.mask, sizeof state.order.mask, "%s", s->data.mask);
        dt_order_tidy(&state.order);
    }
    return state;
}

// Refuses to resume from a checkpoint that is older than others in the folder: the run would save
// checkpoints older than those, the next run.resume = auto would choose the others, and pruning
// would remove the new ones.
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
    memcpy(t->state.order.mixture, expected.order.mixture, sizeof expected.order.mixture);
    warn_of_device(t->state.device, expected.device);
    memcpy(t->state.device, expected.device, sizeof t->state.device);
    DT_TRY(check_branch(t));
    if (!t->job->settings.checkpoint.best)
        return DT_OK;
    // If the best checkpoint does not exist (not kept, or not copied), any loss is an improvement.
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

dt_status dt_trainer_resume(struct trainer *t)
{
    struct dt_comm *comm = t->job->comm;
    const struct dt_checkpoint_arrays *host = &t->snapshot.host;
    bool spread = dt_pieces_are_spread(&host->states.pieces, host->params->elements);
    dt_comm_progress(comm, 0, "loading a checkpoint");
    DT_TRY(dt_agree(comm, t->root ? load_on_root(t) : DT_OK));
    DT_TRY(dt_broadcast(comm, t->job->resume, sizeof t->job->resume, 0)); // after a rollback
    // Spread states are read by their ranks, since rank 0 does not have them.
    DT_TRY(dt_agree(comm,
                    spread && !t->root ? dt_checkpoint_load_states(t->job->resume, host) : DT_OK));
    DT_TRY(dt_broadcast(comm, &t->state, sizeof t->state, 0));
    DT_TRY(dt_job_normalize(t->job, &t->snapshot.host, false));
    DT_TRY(dt_snapshot_share(&t->snapshot, comm));
    DT_TRY(dt_stepper_weights_changed(t->stepper));
    DT_TRY(dt_carry_share(&t->stepper->carry, comm));
    DT_TRY(
        dt_optimizer_restore(&t->stepper->optimizer, t->state.updates, t->state.skipped_in_a_row));
    DT_TRY(dt_skips_parse(t->state.left_out, &t->left_out));
    dt_run_folder_step(t->state.step);
    dt_info("resuming from %s at step %lld", t->job->resume, (long long)t->state.step);
    return DT_OK;
}

dt_status dt_trainer_open_sinks(struct trainer *t)
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
                                       .settings = job->config,
                                       // Padding is computed too.
                                       .flops_per_token = dt_model_flops_per_token(&job->model) /
                                                          dt_dataset_filled(job->train),
                                       .unit = dt_model_unit(&job->model)};
    return t->root ? dt_metrics_open(&config, &t->metrics) : DT_OK;
}

dt_status dt_trainer_open_loader(struct trainer *t)
{
    struct dt_loader_config config = dt_job_train_loader(t->job);
    config.skips = t->left_out;
    return t->state.step < t->job->steps ? dt_loader_open(&config, t->state.step, &t->loader)
                                         : DT_OK;
}

static dt_status open_metrics(struct trainer *t)
{
    struct dt_job *job = t->job;
    dt_run_folder_best(t->state.best_step, t->state.best_loss);
    if (t->root && (t->state.step >= job->steps || dt_trainer_is_out_of_patience(t)))
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
    return dt_trainer_open_sinks(t);
}

static dt_status create_local(struct trainer *t)
{
    struct dt_job *job = t->job;
    struct dt_model_shape shape = dt_job_shape(job, true);
    DT_TRY(dt_model_create(&job->backend, &job->model, &shape, &t->model));
    struct dt_stepper_config stepper = dt_job_stepper(job);
    stepper.times = t->profile.times;
    DT_TRY(dt_stepper_create(&job->backend, t->model, &stepper, &t->stepper));
    DT_TRY(dt_snapshot_create(&job->backend, t->model, &t->stepper->optimizer.states, t->root,
                              &t->snapshot));
    if (job->settings.comm.verify_replicas > 0)
        DT_TRY(dt_replicas_create(&job->backend, t->model, &t->stepper->optimizer.states,
                                  job->comm->info.size, &t->replicas));
    const struct dt_carry *carry = &t->stepper->carry;
    const struct dt_mixture *mixture = &job->train->mixture;
    if (mixture->n > 1) {
        DT_TRY(dt_mixer_create(mixture, (uint64_t)job->settings.run.seed, job->settings.data.batch,
                               &t->mixer));
        DT_TRY(DT_NEW(&t->slots, job->settings.data.batch, "losses of sequences"));
    }
    t->snapshot.host.tokenizer = job->tokenizer.n > 0 ? &job->tokenizer : NULL;
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

static void note_best(void *trainer)
{
    const struct dt_trainer_state *state = &((struct trainer *)trainer)->state;
    dt_run_folder_best(state->best_step, state->best_loss);
}

static dt_status create_saver(struct trainer *t)
{
    const struct dt_settings *s = &t->job->settings;
    DT_TRY(dt_path(t->checkpoints, "%s/checkpoints", t->job->run_path)); // any rank may write there
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
                                           .reset = note_best,
                                           .context = t};
    return dt_saver_create(&config, &t->saver);
}

dt_status dt_trainer_start(struct trainer *t)
{
    struct dt_job *job = t->job;
    int ranks = job->comm->info.size;
    DT_TRY(dt_agree(job->comm, dt_train_check_resources(job)));
    DT_TRY(dt_agree(job->comm, dt_profile_open(job, &t->profile)));
    dt_comm_progress(job->comm, 0, "building the model");
    DT_TRY(dt_agree(job->comm, create_local(t)));
    DT_TRY(dt_stepper_connect(t->stepper));
    if (dt_job_wants_selftest(job))
        dt_info("collectives give right results on known values (comm.selftest)");

    DT_TRY(dt_evaluation_warn(job));
    t->state = fresh_state(job);
    DT_TRY(dt_job_mixture_text(job, t->state.order.mixture));
    DT_TRY(dt_agree(job->comm, dt_job_describe_device(job, t->state.device)));
    t->schedule = dt_lr_schedule(&job->settings, job->steps);
    if (job->resume[0])
        DT_TRY(dt_trainer_resume(t));
    else {
        DT_TRY(dt_job_check_data(job, true));
        DT_TRY(dt_job_load_weights(job, job->settings.run.init_from, false, &t->snapshot));
        DT_TRY(dt_stepper_weights_changed(t->stepper));
        DT_TRY(dt_optimizer_start_ema(&t->stepper->optimizer));
    }

    dt_status status = open_metrics(t);
    DT_TRY(dt_agree(job->comm, status == DT_OK ? dt_trainer_open_loader(t) : status));

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
    const struct dt_shard *shard = &job->train->shards[0];
    if (shard->layout.target_width > 0)
        dt_info("windows of %lld frames start every %lld frames of an episode (data.stride)",
                (long long)job->settings.data.seq_len, (long long)shard->stride);
    if (dt_job_sharding(job) != DT_SHARD_NOTHING && ranks == 1)
        dt_info("optim.shard changes nothing on one rank");
    return create_saver(t);
}
