// Trains one run, from its first step or its checkpoint to its end; iterate() is one step. All
// ranks take the same steps, and vote in each whether to stop or save.
#include "train/train.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/round.h"
#include "base/text.h"
#include "base/trace.h"
#include "comm/job_control.h"
#include "train/evaluate.h"
#include "train/signals.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dt_status dt_trainer_save(struct trainer *t, bool waits)
{
    dt_comm_progress(t->job->comm, t->state.step, "saving a checkpoint");
    DT_TRY(dt_saver_settle(t->saver, DT_WAIT)); // waits for the earlier checkpoint
    double start = dt_seconds();
    DT_TRY(dt_carry_gather(&t->stepper->carry, t->job->comm));
    uint64_t filling = dt_trace_begin();
    DT_TRY(dt_snapshot_fill(&t->snapshot));
    dt_trace_end(DT_LANE_CHECKPOINT, "snapshot", filling, 0);
    dt_stepper_hold(t->stepper, t->snapshot.filled);
    DT_TRY(dt_saver_begin(t->saver, start));
    return waits ? dt_saver_settle(t->saver, DT_WAIT_AND_FAIL) : DT_OK;
}

// Fills `scores` unless NULL.
static dt_status evaluate(struct trainer *t, struct dt_scores *scores, struct dt_loss_sum *total,
                          struct dt_loss_part *sources)
{
    struct dt_evaluation e = {.job = t->job,
                              .model = t->model,
                              .stepper = t->stepper,
                              .input = &t->stepper->input,
                              .carry = &t->stepper->carry,
                              .segments = &t->stepper->segments,
                              .max_batches = t->job->settings.log.eval_batches,
                              .stream = t->stepper->stream,
                              .times = t->profile.times,
                              .scores = scores};
    DT_TRY(dt_evaluate(&e));
    t->profile.batches += e.batches;
    t->profile.timed_batches += e.timed;
    *total = e.total;
    if (sources)
        memcpy(sources, e.sources, sizeof e.sources);
    return DT_OK;
}

static double mean_loss(const struct dt_loss_sum *total)
{
    double mean = total->loss / total->counted;
    return isnan(mean) ? NAN : mean; // clear the sign of a NaN
}

// Computes the loss of the moving average of the weights.
static dt_status evaluate_ema(struct trainer *t, double *loss)
{
    struct dt_optimizer *optimizer = &t->stepper->optimizer;
    struct dt_loss_sum total;
    DT_TRY(dt_optimizer_swap_ema(optimizer, t->stepper->stream));
    DT_TRY(dt_stepper_weights_changed(t->stepper));
    DT_TRY(evaluate(t, NULL, &total, NULL));
    *loss = mean_loss(&total);
    DT_TRY(dt_optimizer_swap_ema(optimizer, t->stepper->stream));
    DT_TRY(dt_stepper_weights_changed(t->stepper));
    return dt_stream_sync(&t->job->backend, t->stepper->stream); // before a save
}

// *improved: whether the loss (of the moving average, if there is one) is the lowest so far.
static dt_status validate_with(struct trainer *t, struct dt_scores *scores, bool *improved)
{
    const struct dt_dataset *val = t->job->val;
    struct dt_loss_part sources[DT_SOURCES_MAX];
    struct dt_loss_sum total;
    dt_comm_progress(t->job->comm, t->state.step, "validation");
    DT_TRY(evaluate(t, scores, &total, sources));
    struct dt_metric_event event = {.kind = DT_METRIC_EVAL,
                                    .step = t->state.step,
                                    .loss = mean_loss(&total),
                                    .perplexity = exp(mean_loss(&total)),
                                    .accuracy = total.metrics[1] / total.counted,
                                    .has_perplexity = dt_model_outputs(t->model)->perplexity,
                                    .has_ema = t->job->settings.optim.ema > 0,
                                    .tokens = (int64_t)total.counted,
                                    .heads = dt_model_measured(t->model),
                                    .sum = &total,
                                    .scores = scores,
                                    .n_sources = val->n_sources > 1 ? val->n_sources : 0,
                                    .sources = val->sources,
                                    .losses = sources};
    if (total.counted > 0 && !isfinite(event.loss))
        dt_warn("step %lld: the validation loss is not finite, since the weights diverged: lower "
                "optim.lr, or increase optim.warmup_steps",
                (long long)t->state.step);
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

static dt_status validate(struct trainer *t, bool *improved)
{
    struct dt_scores *scores;
    *improved = false;
    if (!t->job->val)
        return DT_OK;
    DT_TRY(dt_evaluation_scores(t->job, t->model, &scores));
    dt_status status = validate_with(t, scores, improved);
    dt_scores_destroy(scores);
    return status;
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

// Sums the losses of a mixture's sources over the batch in the order of its sequences, so that the
// bits do not depend on the number of ranks. *known: the head has losses of single sequences.
static dt_status add_up_sources(struct trainer *t, const struct dt_step_result *result,
                                struct dt_loss_part *sources, double *epochs, bool *known)
{
    const struct dt_job *job = t->job;
    const struct dt_source *source = job->train->sources;
    int64_t batch = job->settings.data.batch;
    int64_t at = dt_skips_batch(&t->left_out, t->state.step - 1), before[DT_SOURCES_MAX];
    *known = result->slots != NULL;
    dt_mixer_count(t->mixer, at + 1, 0, before);
    for (int i = 0; i < job->train->mixture.n; i++)
        epochs[i] = (double)before[i] / (double)dt_max_i64(1, source[i].windows / batch);
    if (!*known)
        return DT_OK;
    const struct dt_loader_config loader = dt_job_train_loader(job);
    memset(t->slots, 0, (size_t)batch * sizeof *t->slots);
    for (int64_t row = 0; row < job->local_batch; row++)
        t->slots[dt_loader_slot(&loader, row)] = result->slots[row];
    // x + 0 + … is x; the parts of a window that ranks share are added up.
    DT_TRY(dt_allreduce(job->comm, t->slots, 2 * batch, DT_F64, DT_SUM));
    for (int64_t k = 0; k < batch; k++) {
        struct dt_loss_part *part = &sources[dt_mixer_at(t->mixer, at, k, before)];
        part->loss += t->slots[k].loss;
        part->counted += t->slots[k].counted;
    }
    return DT_OK;
}

static dt_status log_step(struct trainer *t, const struct dt_step_result *result, double z)
{
    const struct dt_job *job = t->job;
    const struct dt_update_control *update = &result->control;
    struct dt_loss_part sources[DT_SOURCES_MAX] = {{0}};
    double epochs[DT_SOURCES_MAX];
    bool known = false;
    if (t->mixer)
        DT_TRY(add_up_sources(t, result, sources, epochs, &known));
    struct dt_metric_event event = {
        .kind = DT_METRIC_TRAIN,
        .step = t->state.step,
        .epoch = dt_skips_batch(&t->left_out, t->state.step - 1) / job->steps_per_epoch,
        .tokens = t->state.tokens,
        .loss = update->loss,
        .grad_norm = update->grad_norm,
        .lr = result->lr,
        .step_ms = result->seconds * 1e3,
        .tokens_per_s = dt_dataset_filled(job->train) * (double)tokens_of_step(t) / result->seconds,
        .data_wait_ms = result->data_wait_ms,
        .comm_wait_ms = result->comm_wait_ms,
        .idle_ms = result->idle_ms,
        .loss_z = z,
        .skipped = update->skip,
        .heads = dt_model_measured(t->model),
        .sum = &result->sum,
        .n_sources = job->train->mixture.n,
        .sources = job->train->sources,
        .losses = known ? sources : NULL,
        .epochs = epochs};
    if (t->root && job->backend.table->unified) {
        char kilobytes[64];
        dt_proc_value("/proc/self/status", "VmRSS", kilobytes, sizeof kilobytes);
        event.memory_mb = strtod(kilobytes, NULL) * 1024 / 1e6;
    } else if (t->root)
        event.memory_mb = (double)dt_memory_in_use(&job->backend) / 1e6;
    return dt_metrics_write(t->metrics, &event);
}

static const char skipped_hint[] =
    "lower optim.lr, increase optim.warmup_steps, or check the data of these steps";

static dt_status check_skipped(const struct trainer *t, const struct dt_update_control *update)
{
    int64_t most = t->job->settings.optim.max_skipped;
    dt_status status = DT_OK;
    if (update->skipped_in_a_row < most || dt_trainer_must_roll_back(t))
        return DT_OK;
    if (t->root)
        status = DT_FAIL(
            DT_USER, skipped_hint,
            "%d steps in a row were skipped (optim.max_skipped = %lld), the last at step %lld: "
            "loss %g, gradient norm %g",
            update->skipped_in_a_row, (long long)most, (long long)t->state.step, update->loss,
            update->grad_norm);
    return dt_agree(t->job->comm, status);
}

// Waits for the oldest step in flight, counts and logs it. Its result is the same on every rank.
static dt_status collect(struct trainer *t)
{
    struct dt_step_result result;
    DT_TRY(dt_stepper_collect(t->stepper, &result));
    dt_trace_phase("logging");
    double z = dt_loss_z(&t->state.losses, result.control.loss);
    const struct dt_update_control *update = &result.control;
    struct dt_trainer_state *state = &t->state;
    t->profile.steps++;
    t->profile.timed_steps += result.timed;
    state->step++;
    state->tokens += tokens_of_step(t);
    state->updates = update->updates;
    state->skips += update->skip;
    state->skipped_in_a_row = update->skipped_in_a_row;
    state->bad_in_a_row = update->skip || is_spike(t, z) ? state->bad_in_a_row + 1 : 0;
    dt_loss_count(&state->losses, update->loss, t->job->settings.optim.spike);
    dt_run_folder_step(state->step);
    if (t->config_changes)
        DT_TRY(dt_run_folder_config(&t->job->folder, t->job->config));
    t->config_changes = false;
    DT_TRY(log_step(t, &result, z));
    const char *unit = dt_model_unit(&t->job->model);
    if (update->skip && update->counted == 0)
        dt_warn("step %lld skipped: none of its %s counts in the loss (labels of -100 and padding "
                "do not)",
                (long long)t->state.step, unit);
    else if (update->skip)
        dt_warn("step %lld skipped: loss %g, gradient norm %g, %.0f %s counted",
                (long long)t->state.step, update->loss, update->grad_norm, update->counted, unit);
    if (is_spike(t, z) && t->job->settings.optim.rollback > 0)
        dt_warn("step %lld spiked: its loss %g is %.1f standard deviations above the recent ones",
                (long long)t->state.step, update->loss, z);
    return check_skipped(t, &result.control);
}

static bool is_due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static dt_status iterate(struct trainer *t, bool *stopped)
{
    const struct dt_job *job = t->job;
    const struct dt_settings *s = &job->settings;

    // Launch the next step while a GPU may still be busy with the previous one, so that it never
    // waits.
    int64_t step = t->state.step + dt_stepper_in_flight(t->stepper) + 1;
    dt_profile_begin_step(&t->profile, step);
    DT_TRY(dt_stepper_launch(t->stepper, t->loader, step, dt_lr_at(&t->schedule, step)));

    // Vote while the device works: was any rank asked to stop, does rank 0 want a checkpoint, is
    // the previous one complete?
    struct {
        double stop, save, report;
        struct dt_save_votes saver;
    } votes = {dt_signals_pending() != 0,
               t->root && dt_saver_is_overdue(t->saver, 60 * s->checkpoint.minutes),
               dt_signals_report_wanted(), dt_saver_vote(t->saver)};
    dt_trace_phase("agreeing on stops and saves");
    DT_TRY(dt_allreduce(job->comm, &votes, sizeof votes / sizeof(double), DT_F64, DT_SUM));
    DT_TRY(dt_saver_advance(t->saver, &votes.saver));
    if (votes.report > 0)
        DT_TRY(dt_profile_write(&t->profile));

    // Decide what follows this step. A request to stop may leave little time, so skip validation.
    bool last = step == job->steps, stop = votes.stop > 0 && !last;
    bool verifies = is_due(step, s->comm.verify_replicas);
    bool validates = last || (is_due(step, s->log.eval_every) && !stop);
    bool must_save = last || (stop && s->checkpoint.on_signal);
    t->save_owed |= is_due(step, s->checkpoint.every) || votes.save > 0;
    if (t->save_owed)
        DT_TRY(dt_saver_settle(t->saver, DT_WAIT_BRIEFLY));
    bool saves = must_save || (t->save_owed && dt_saver_is_free(t->saver));

    // Collect the oldest step, and all steps if something needs the end of this one.
    bool traces = dt_profile_traces(&t->profile, step) || dt_profile_traces(&t->profile, step + 1);
    bool ends = verifies || validates || saves || stop || traces;
    while (dt_stepper_in_flight(t->stepper) > (ends ? 0 : dt_stepper_depth(t->stepper) - 1) &&
           !dt_trainer_must_roll_back(t))
        DT_TRY(collect(t));
    if (dt_trainer_must_roll_back(t)) {
        DT_TRY(dt_trainer_roll_back(t));
        *stopped = stop;
        return dt_profile_end_step(&t->profile, step, *stopped);
    }
    if (s->optim.rollback > 0 && t->state.bad_in_a_row > 0) // not a state to return to
        saves = must_save;

    if (ends)
        DT_TRY(dt_stepper_complete(t->stepper));
    if (verifies)
        DT_TRY(dt_replicas_compare(&t->replicas, job->comm, t->state.step));
    bool improved = false;
    if (validates)
        DT_TRY(validate(t, &improved));
    bool gives_up = !last && dt_trainer_is_out_of_patience(t);
    if (saves || gives_up || (improved && s->checkpoint.best)) {
        t->save_owed = false;
        DT_TRY(dt_trainer_save(t, must_save || gives_up));
    }
    *stopped = stop || gives_up;
    return dt_profile_end_step(&t->profile, step, last || *stopped);
}

// A run that ends with several skipped steps has failed, since no later step can show that the
// model still learns. A single skipped step at the end may be due to its batch.
static dt_status check_last_steps(const struct trainer *t)
{
    const struct dt_trainer_state *state = &t->state;
    dt_status status = DT_OK;
    if (state->skipped_in_a_row < 2 && (state->updates > 0 || state->skips == 0))
        return DT_OK;
    if (t->root && state->updates == 0)
        status = DT_FAIL(DT_USER, skipped_hint,
                         "every step of the run was skipped (%lld in total): nothing was learned",
                         (long long)state->skips);
    else if (t->root)
        status = DT_FAIL(DT_USER, skipped_hint,
                         "the last %lld steps of the run were all skipped; the last that was "
                         "applied is step %lld",
                         (long long)state->skipped_in_a_row,
                         (long long)(state->step - state->skipped_in_a_row));
    return dt_agree(t->job->comm, status);
}

static dt_status finish(struct trainer *t, bool stopped)
{
    const struct dt_job *job = t->job;
    bool gave_up = stopped && dt_trainer_is_out_of_patience(t);
    char reason[256] = "";
    if (!stopped || gave_up)
        DT_TRY(check_last_steps(t));
    if (gave_up)
        snprintf(reason, sizeof reason,
                 "the validation loss has not improved on %.6g (step %lld) in %lld evaluations "
                 "(run.patience)",
                 t->state.best_loss, (long long)t->state.best_step,
                 (long long)t->state.evaluations_since_best);
    else if (stopped)
        snprintf(reason, sizeof reason, "%s", dt_signals_name(dt_signals_pending()));
    DT_TRY(dt_metrics_sync(t->metrics)); // a complete run has its whole curve
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
    char total[DT_DURATION_TEXT];
    double seconds = dt_seconds() - job->started;
    if (t->profile.steps > 0)
        dt_info("total time %s for %lld steps, %.0f %s/s overall", dt_duration(seconds, total),
                (long long)t->profile.steps,
                dt_dataset_filled(job->train) * (double)(t->profile.steps * tokens_of_step(t)) /
                    seconds,
                dt_model_unit(&job->model));
    return DT_OK;
}

dt_status dt_train(struct dt_job *job)
{
    struct trainer t = {.job = job, .root = job->comm->info.rank == 0};
    bool stopped = false;
    dt_status status;
    DT_TRY_GOTO(status, out, dt_trainer_start(&t));
    if (t.state.step < job->steps) {
        int64_t asked = dt_signals_pending() != 0; // on any rank, before the first step
        DT_TRY_GOTO(status, out, dt_allreduce(job->comm, &asked, 1, DT_I64, DT_MAX));
        stopped = asked != 0 || dt_trainer_is_out_of_patience(&t);
        if (!stopped)
            DT_TRY_GOTO(status, out, dt_trainer_save_start(&t));
    }
    while (t.state.step < job->steps && !stopped)
        DT_TRY_GOTO(status, out, iterate(&t, &stopped));
    DT_TRY_GOTO(status, out, dt_saver_settle(t.saver, DT_WAIT_AND_FAIL));
    DT_TRY_GOTO(status, out, finish(&t, stopped));
out:
    dt_comm_end_if_alone(job->comm, status);
    dt_saver_destroy(t.saver);
    dt_stepper_destroy(t.stepper); // first, since a step in flight may read the loader's memory
    dt_loader_close(t.loader);
    dt_metrics_close(t.metrics);
    dt_snapshot_destroy(&t.snapshot);
    dt_replicas_destroy(&t.replicas);
    dt_model_destroy(t.model);
    dt_profile_close(&t.profile);
    dt_mixer_free(t.mixer);
    free(t.slots);
    return status;
}
