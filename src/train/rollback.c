// optim.rollback: after some bad steps in a row (skipped, or with a spike in the loss) the run
// returns to the checkpoint before them and continues without their batches.
#include "train/trainer.h"

#include "base/log.h"
#include "comm/job_control.h"

bool dt_trainer_must_roll_back(const struct trainer *t)
{
    int64_t most = t->job->settings.optim.rollback;
    return most > 0 && t->state.bad_in_a_row >= most;
}

// Saves the start of the run, unless it has a checkpoint from before its latest bad steps. Bad
// steps counted by a named checkpoint belong to another run, to which this one cannot return.
dt_status dt_trainer_save_start(struct trainer *t)
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
    return dt_trainer_save(t, false);
}

// Fails if too many batches in a row around `batch` are left out, since a model that stays bad with
// any data would roll back forever.
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

dt_status dt_trainer_roll_back(struct trainer *t)
{
    struct dt_job *job = t->job;
    struct dt_skips left_out = t->left_out;
    int64_t last = t->state.step, first_bad = last - t->state.bad_in_a_row + 1;
    int64_t rollbacks = t->state.rollbacks + 1;
    struct dt_step_result dropped;
    DT_TRY(dt_saver_settle(t->saver, DT_WAIT));
    while (dt_stepper_in_flight(t->stepper) > 0)
        DT_TRY(dt_stepper_collect(t->stepper, &dropped));
    DT_TRY(dt_stepper_complete(t->stepper));
    dt_comm_progress(job->comm, last, "returning to a checkpoint");
    int64_t batch = dt_skips_batch(&t->left_out, first_bad - 1);
    dt_status status = dt_skips_add(&left_out, batch, dt_skips_batch(&t->left_out, last - 1) + 1);
    if (status == DT_OK && t->root)
        status = check_left_out(t, &left_out, batch);
    // Removes later checkpoints and the metrics of later steps.
    if (status == DT_OK && t->root)
        status = dt_checkpoint_cut(job->folder.checkpoints, first_bad - 1);
    if (status == DT_OK && t->root)
        status = dt_checkpoint_newest(job->folder.checkpoints, job->resume);
    DT_TRY_NOTE(
        dt_agree(job->comm, status),
        "returning to the checkpoint before step %lld, the first of %lld bad steps in a row "
        "(rollback %lld)",
        (long long)first_bad, (long long)(last - first_bad + 1), (long long)rollbacks);

    dt_loader_close(t->loader);
    t->loader = NULL;
    dt_metrics_close(t->metrics);
    t->metrics = NULL;
    DT_TRY(dt_trainer_resume(t));
    t->left_out = left_out;
    t->state.rollbacks = rollbacks;
    t->save_owed = false;
    dt_skips_text(&left_out, t->state.left_out);
    status = dt_trainer_open_sinks(t);
    DT_TRY(dt_agree(job->comm, status == DT_OK ? dt_trainer_open_loader(t) : status));
    DT_TRY(dt_trainer_save(t, true));
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
