// One run from its first step (or its checkpoint) to its end. All ranks walk through the same
// steps; what they must agree on in a step (to stop, to save) travels with the loss.
#include "train/train.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "comm/job_control.h"
#include "job/gemm_algos.h"
#include "train/evaluate.h"
#include "train/host_arrays.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/schedule.h"
#include "train/signals.h"
#include "train/step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

struct trainer {
    struct dt_job *job;
    bool root;
    struct dt_model *model;
    struct dt_stepper *stepper;
    struct dt_loader *loader;
    struct dt_metrics *metrics; // root only
    struct dt_lr_schedule schedule;
    struct dt_trainer_state state; // after the last step that was collected
    double last_save;              // dt_seconds of the last checkpoint
    int64_t last_saved;            // its step, -1 where none
    int64_t last_eval;             // step of the last validation
};

// What ranks tell each other at every step, summed over ranks.
struct votes {
    double stop; // ranks that were asked to stop
    double save; // rank 0: it is time for a checkpoint
};

static double resident_mb(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return 0;
    if (fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

// Memory of the device; where the host's is the device's, what this process has resident.
static double memory_mb(const struct dt_backend *backend)
{
    return backend->table->unified ? resident_mb()
                                   : (double)backend->table->memory_in_use(backend->device) / 1e6;
}

// Creation, in the order of the data's way: model, step, loader.

static struct dt_trainer_state fresh_state(const struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    return (struct dt_trainer_state){.seed = (uint64_t)s->run.seed,
                                     .batch = s->data.batch,
                                     .seq_len = s->data.seq_len,
                                     .block = s->data.block,
                                     .shuffle = s->data.shuffle,
                                     .reset_token = s->data.reset_token,
                                     .reset_after = s->data.reset_after,
                                     .storage = (int)job->model.storage};
}

static struct dt_checkpoint_arrays checkpoint_arrays(const struct trainer *t,
                                                     const struct dt_host_arrays *host)
{
    return (struct dt_checkpoint_arrays){.model = &t->job->model,
                                         .params = dt_model_params(t->model),
                                         .weights = host->weights,
                                         .m = host->m,
                                         .v = host->v};
}

// A run that is set back would leave its own checkpoints behind the newer ones of the old course:
// the next run.resume = auto would take those, and pruning remove the others.
static dt_status check_branch(const struct trainer *t)
{
    int64_t last;
    DT_TRY(dt_checkpoint_last_step(t->job->folder.checkpoints, &last));
    if (!dt_job_resume_is_named(t->job) || last <= t->state.step)
        return DT_OK;
    return dt_config_reject(t->job->config, "run.resume",
                            "set run.resume = auto to go on from the newest, remove those that are "
                            "newer, or give the branch another run.name",
                            "%s is of step %lld, but %s holds one of step %lld", t->job->resume,
                            (long long)t->state.step, t->job->folder.checkpoints, (long long)last);
}

static dt_status load_on_root(struct trainer *t, const struct dt_host_arrays *host)
{
    if (!t->root)
        return DT_OK;
    struct dt_checkpoint_arrays arrays = checkpoint_arrays(t, host);
    struct dt_trainer_state expected = t->state;
    DT_TRY(dt_checkpoint_load(t->job->resume, &arrays, &expected, t->job->train, &t->state));
    t->state.storage = expected.storage;
    return check_branch(t);
}

// Goes on from job->resume: rank 0 reads, all get the same.
static dt_status resume(struct trainer *t)
{
    struct dt_host_arrays host;
    dt_comm_progress(t->job->comm, 0, "loading a checkpoint");
    enum dt_host_arrays_use use = t->root ? DT_HOST_ARRAYS_LOAD : DT_HOST_ARRAYS_RECEIVE;
    dt_status status = dt_host_arrays_take(&t->job->backend, t->model,
                                           dt_stepper_optimizer(t->stepper), use, &host);
    if (status == DT_OK)
        status = load_on_root(t, &host);
    status = dt_agree(t->job->comm, status);
    if (status == DT_OK)
        status = dt_broadcast(t->job->comm, &t->state, sizeof t->state, 0);
    if (status == DT_OK)
        status = dt_host_arrays_share(&host, t->job->comm);
    dt_host_arrays_drop(&host);
    if (status != DT_OK)
        return status;
    DT_TRY(dt_model_refresh(t->model, NULL));
    DT_TRY(dt_optimizer_restore(dt_stepper_optimizer(t->stepper), t->state.updates,
                                t->state.skipped_in_a_row));
    dt_info("going on from %s at step %lld", t->job->resume, (long long)t->state.step);
    return DT_OK;
}

static dt_status open_metrics(struct trainer *t)
{
    dt_run_folder_step(t->state.step);
    if (!t->root) {
        dt_run_folder_watch(t->job->run_path);
        return DT_OK;
    }
    const struct dt_settings *s = &t->job->settings;
    struct dt_metrics_config config = {.folder = t->job->run_path,
                                       .resume_step = t->state.step,
                                       .first_step = t->state.step + 1,
                                       .steps = t->job->steps,
                                       .every = s->log.every,
                                       .console = (enum dt_console_choice)s->log.console,
                                       .flops_per_token = dt_model_flops_per_token(&t->job->model)};
    if (t->job->resume[0])
        dt_run_folder_changes(&t->job->folder, t->job->config, t->job->resume);
    DT_TRY(dt_run_folder_config(&t->job->folder, t->job->config));
    DT_TRY(dt_run_folder_state(&t->job->folder, "running", t->state.step, ""));
    dt_run_folder_watch(t->job->run_path);
    return dt_metrics_open(&config, &t->metrics);
}

static dt_status create_local(struct trainer *t)
{
    struct dt_job *job = t->job;
    struct dt_model_shape shape = dt_job_shape(job, true);
    DT_TRY(dt_model_create(&job->backend, &job->model, &shape, &t->model));
    struct dt_stepper_config stepper = dt_job_stepper(job);
    return dt_stepper_create(&job->backend, t->model, &stepper, &t->stepper);
}

static dt_status create(struct trainer *t)
{
    struct dt_job *job = t->job;
    DT_TRY(dt_agree(job->comm, dt_train_check_resources(job)));
    dt_comm_progress(job->comm, 0, "choosing GEMM algorithms");
    DT_TRY(dt_gemm_algos_apply(job));
    dt_comm_progress(job->comm, 0, "building the model");
    DT_TRY(dt_agree(job->comm, create_local(t)));
    DT_TRY(dt_stepper_connect(t->stepper));
    t->state = fresh_state(job);
    t->schedule = dt_lr_schedule(&job->settings, job->steps);
    if (job->resume[0])
        DT_TRY(resume(t));
    else
        DT_TRY(dt_job_load_weights(job, job->settings.run.init_from, t->model));
    // Weights were sent beside the stream that uses them.
    DT_TRY(job->backend.table->stream_sync(job->backend.device, NULL));
    if (job->resume[0]) // a checkpoint comes behind the validation of its step
        t->last_saved = t->last_eval = t->state.step;
    struct dt_loader_config loader = dt_job_train_loader(job);
    dt_status status = open_metrics(t);
    if (status == DT_OK && t->state.step < job->steps)
        status = dt_loader_open(&loader, t->state.step, &t->loader);
    return dt_agree(job->comm, status);
}

static void destroy(struct trainer *t)
{
    dt_stepper_destroy(t->stepper); // first: a step in flight may read the loader's memory
    dt_loader_close(t->loader);
    dt_metrics_close(t->metrics);
    dt_model_destroy(t->model);
}

// Checkpoints and validation.

static dt_status save_on_root(struct trainer *t)
{
    if (!t->root)
        return DT_OK;
    const struct dt_job *job = t->job;
    struct dt_host_arrays host;
    char path[DT_PATH];
    double start = dt_seconds();
    DT_TRY(dt_metrics_sync(t->metrics)); // the curve must not end before the checkpoint
    dt_status status = dt_host_arrays_take(
        &t->job->backend, t->model, dt_stepper_optimizer(t->stepper), DT_HOST_ARRAYS_SAVE, &host);
    struct dt_checkpoint_arrays arrays = checkpoint_arrays(t, &host);
    if (status == DT_OK)
        status = dt_checkpoint_save(job->folder.checkpoints, &arrays, &t->state, job->train, path);
    dt_host_arrays_drop(&host);
    DT_TRY(status);
    DT_TRY(dt_run_folder_state(&job->folder, "running", t->state.step, ""));
    DT_TRY(dt_checkpoint_prune(job->folder.checkpoints, job->settings.checkpoint.keep));
    return dt_metrics_write(t->metrics,
                            &(struct dt_event){.kind = DT_EVENT_CHECKPOINT,
                                               .step = t->state.step,
                                               .path = path,
                                               .stall_ms = (dt_seconds() - start) * 1e3});
}

static dt_status save(struct trainer *t)
{
    if (t->last_saved == t->state.step)
        return DT_OK;
    dt_comm_progress(t->job->comm, t->state.step, "saving a checkpoint");
    DT_TRY_NOTE(dt_agree(t->job->comm, dt_error_in_mid_run(save_on_root(t))), "saving step %lld",
                (long long)t->state.step);
    t->last_save = dt_seconds();
    t->last_saved = t->state.step;
    return DT_OK;
}

static dt_status validate(struct trainer *t)
{
    if (!t->job->val || t->last_eval == t->state.step)
        return DT_OK;
    struct dt_loss_sum total;
    dt_comm_progress(t->job->comm, t->state.step, "validation");
    DT_TRY(dt_evaluate(t->job, t->model, dt_stepper_input(t->stepper),
                       t->job->settings.log.eval_batches, dt_stepper_stream(t->stepper), &total));
    t->last_eval = t->state.step;
    double loss = total.loss / total.counted;
    return dt_metrics_write(t->metrics, &(struct dt_event){.kind = DT_EVENT_EVAL,
                                                           .step = t->state.step,
                                                           .loss = loss,
                                                           .perplexity = exp(loss),
                                                           .tokens = (int64_t)total.counted});
}

// Every rank's weights must be the same bits; a rank that differs is named.
static dt_status verify_replicas(struct trainer *t)
{
    struct dt_comm *comm = t->job->comm;
    const struct dt_backend *backend = &t->job->backend;
    int64_t bytes = dt_model_params(t->model)->elements * (int64_t)sizeof(float);
    float *weights = dt_model_weights(t->model);
    dt_comm_progress(comm, t->state.step, "comparing replicas");
    if (!backend->table->unified) {
        DT_TRY(backend->table->alloc_host(backend->device, bytes, (void **)&weights));
        DT_TRY(backend->table->to_host(backend->device, weights, dt_model_weights(t->model), bytes,
                                       NULL));
        DT_TRY(backend->table->stream_sync(backend->device, NULL));
    }
    uint64_t hash = XXH64(weights, (size_t)bytes, 0);
    if (!backend->table->unified)
        backend->table->free_host(backend->device, weights);
    uint64_t first = hash;
    DT_TRY(dt_broadcast(comm, &first, sizeof first, 0));
    dt_status mine = DT_OK;
    if (hash != first)
        mine =
            DT_FAIL(DT_MACHINE,
                    "this host's memory or libraries may be at fault: leave it out and resume from "
                    "the last "
                    "checkpoint",
                    "the weights differ from rank 0's after step %lld (%016llx, not %016llx)",
                    (long long)t->state.step, (unsigned long long)hash, (unsigned long long)first);
    return dt_agree(comm, mine);
}

// The step.

static bool time_to_save(const struct trainer *t)
{
    const struct dt_settings *s = &t->job->settings;
    return t->root && s->checkpoint.minutes > 0 &&
           dt_seconds() - t->last_save >= 60 * s->checkpoint.minutes;
}

// The device works on meanwhile.
static dt_status share_votes(struct trainer *t, struct votes *votes)
{
    *votes = (struct votes){.stop = dt_signals_pending() != 0, .save = time_to_save(t)};
    return dt_allreduce(t->job->comm, votes, sizeof *votes / sizeof(double), DT_F64, DT_SUM);
}

// Alike on every rank, since the control struct is; rank 0 tells.
static dt_status check_skips(const struct trainer *t, const struct dt_update_control *control)
{
    int64_t limit = t->job->settings.optim.max_skipped;
    dt_status status = DT_OK;
    if (control->skip)
        dt_warn("step %lld skipped: loss %g, gradient norm %g, %.0f tokens counted",
                (long long)t->state.step, control->loss, control->grad_norm, control->counted);
    if (control->skipped_in_a_row < limit)
        return DT_OK;
    if (t->root)
        status = DT_FAIL(
            DT_USER,
            "lower optim.lr, lengthen optim.warmup_steps, or look at the data of these steps",
            "%d steps in a row were skipped (optim.max_skipped = %lld), the last at step %lld: "
            "loss %g, gradient norm %g",
            control->skipped_in_a_row, (long long)limit, (long long)t->state.step, control->loss,
            control->grad_norm);
    return dt_agree(t->job->comm, status);
}

static void count_step(struct trainer *t, const struct dt_update_control *control)
{
    const struct dt_settings *s = &t->job->settings;
    t->state.step++;
    dt_run_folder_step(t->state.step);
    t->state.updates = control->updates;
    t->state.skips += control->skip;
    t->state.skipped_in_a_row = control->skipped_in_a_row;
    t->state.tokens += s->data.batch * s->data.seq_len;
}

static dt_status log_step(struct trainer *t, const struct dt_step_result *result)
{
    int64_t tokens = t->job->settings.data.batch * t->job->settings.data.seq_len;
    const struct dt_event event = {
        .kind = DT_EVENT_TRAIN,
        .step = t->state.step,
        .epoch = (t->state.step - 1) / t->job->steps_per_epoch,
        .tokens = t->state.tokens,
        .loss = result->control.loss,
        .grad_norm = result->control.grad_norm,
        .lr = result->lr,
        .step_ms = result->seconds * 1e3,
        .tokens_per_s = (double)tokens / result->seconds,
        .data_wait_ms = result->data_wait_ms,
        .comm_wait_ms = result->comm_wait_ms,
        .idle_ms = result->idle_ms,
        .memory_mb = t->root ? memory_mb(&t->job->backend) : 0,
        .skipped = result->control.skip,
    };
    return dt_metrics_write(t->metrics, &event);
}

static dt_status launch(struct trainer *t)
{
    int64_t step = t->state.step + dt_stepper_in_flight(t->stepper) + 1;
    return dt_stepper_launch(t->stepper, t->loader, step, dt_lr_at(&t->schedule, step));
}

static dt_status collect(struct trainer *t)
{
    struct dt_step_result result;
    DT_TRY(dt_stepper_collect(t->stepper, &result));
    count_step(t, &result.control);
    DT_TRY(log_step(t, &result));
    return check_skips(t, &result.control);
}

// Whether something comes behind `step` that needs its end.
static bool pauses_after(const struct trainer *t, int64_t step, const struct votes *votes)
{
    const struct dt_settings *s = &t->job->settings;
    const int64_t every[] = {s->comm.verify_replicas, s->log.eval_every, s->checkpoint.every};
    bool pauses = step == t->job->steps || votes->stop > 0 || votes->save > 0;
    for (size_t i = 0; i < sizeof every / sizeof *every; i++)
        pauses = pauses || (every[i] > 0 && step % every[i] == 0);
    return pauses;
}

// Launches the next step and collects those that need not, or must not, stay in flight.
static dt_status train_step(struct trainer *t, struct votes *votes)
{
    DT_TRY(launch(t));
    DT_TRY(share_votes(t, votes));
    int64_t launched = t->state.step + dt_stepper_in_flight(t->stepper);
    int keep = pauses_after(t, launched, votes) ? 0 : dt_stepper_depth(t->stepper) - 1;
    while (dt_stepper_in_flight(t->stepper) > keep)
        DT_TRY(collect(t));
    return DT_OK;
}

// What happens between steps: validation, replicas, checkpoints.
static dt_status between_steps(struct trainer *t, const struct votes *votes)
{
    const struct dt_settings *s = &t->job->settings;
    int64_t step = t->state.step;
    if (dt_stepper_in_flight(t->stepper) > 0)
        return DT_OK;
    if (s->comm.verify_replicas > 0 && step % s->comm.verify_replicas == 0)
        DT_TRY(verify_replicas(t));
    if (s->log.eval_every > 0 && step % s->log.eval_every == 0 && votes->stop == 0)
        DT_TRY(validate(t));   // who asks to stop may give little time to save
    if (step == t->job->steps) // finish does the rest
        return DT_OK;
    bool due = s->checkpoint.every > 0 && step % s->checkpoint.every == 0;
    return due || votes->save > 0 ? save(t) : DT_OK;
}

static dt_status finish(struct trainer *t, bool stopped)
{
    const struct dt_settings *s = &t->job->settings;
    char reason[64] = "";
    if (stopped)
        snprintf(reason, sizeof reason, "%s", dt_signals_name(dt_signals_pending()));
    else
        DT_TRY(validate(t));
    if (!stopped || s->checkpoint.on_signal)
        DT_TRY(save(t));
    if (t->root)
        DT_TRY(dt_run_folder_state(&t->job->folder, stopped ? "stopped" : "complete", t->state.step,
                                   reason));
    dt_run_folder_watch(NULL);
    if (stopped)
        dt_info("stopped by %s after step %lld of %lld: the same command goes on from %s", reason,
                (long long)t->state.step, (long long)t->job->steps,
                s->checkpoint.on_signal ? "there" : "its last checkpoint");
    return DT_OK;
}

static void announce(const struct trainer *t)
{
    const struct dt_job *job = t->job;
    int ranks = job->comm->info.size;
    if (t->state.step >= job->steps)
        dt_info("%s has its %lld steps already: a larger run.steps trains on", job->run_path,
                (long long)job->steps);
    else
        dt_info("%s: %.2f M parameters, %s, %d %s, %lld steps of %lld tokens", job->run_path,
                (double)dt_model_params(t->model)->count * 1e-6, dt_dtype_name(job->model.storage),
                ranks, ranks == 1 ? "rank" : "ranks", (long long)job->steps,
                (long long)(job->settings.data.batch * job->settings.data.seq_len));
}

static dt_status run(struct trainer *t)
{
    bool stopped = false;
    announce(t);
    t->last_save = dt_seconds();
    while (t->state.step < t->job->steps && !stopped) {
        struct votes votes;
        DT_TRY(train_step(t, &votes));
        DT_TRY(between_steps(t, &votes));
        stopped = votes.stop > 0 && t->state.step < t->job->steps;
    }
    return finish(t, stopped);
}

dt_status dt_train(struct dt_job *job)
{
    struct trainer t = {
        .job = job, .root = job->comm->info.rank == 0, .last_saved = -1, .last_eval = -1};
    dt_status status = create(&t);
    if (status == DT_OK)
        status = run(&t);
    dt_comm_end_if_alone(job->comm, status);
    destroy(&t);
    return status;
}
