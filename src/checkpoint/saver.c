// A save has phases, which all ranks enter together. Each rank has a thread that writes its part.
#include "checkpoint/saver.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/trace.h"
#include "base/worker.h"
#include "comm/job_control.h"

#include <math.h>
#include <unistd.h>

static const double brief_s = 2;    // how long training waits for a write when the next save is due
static const double retry_s = 60;   // after a failed save
static const double report_s = 0.1; // interval in which a rank that waits looks at its thread
static const double margin_s = 2;   // lets waiting ranks name this one first

// A single part is published by the thread that wrote it; several parts are published by rank 0
// when all are complete, or removed.
enum phase { FREE, WRITING, PUBLISHING, DISCARDING };

struct dt_saver {
    struct dt_saver_config config;
    struct dt_worker *worker;
    uint64_t id; // id of the next draft
    int parts;   // parts per draft
    enum phase phase;
    double begun;    // dt_seconds when the last save began
    double retry_at; // dt_seconds; infinite unless the last save failed
    // The current save.
    struct dt_trainer_state state;
    struct dt_checkpoint_draft draft;
    struct dt_manifest manifest;
    double stall_s, write_s;
    // The best saved checkpoint.
    int64_t best_step;
    double best_loss;
    int64_t best_evaluation; // its state.evaluations
};

static void note_best(struct dt_saver *s, const struct dt_trainer_state *state)
{
    s->best_step = state->best_step;
    s->best_loss = state->best_loss;
    s->best_evaluation = state->evaluations - state->evaluations_since_best;
}

dt_status dt_saver_create(const struct dt_saver_config *config, struct dt_saver **saver)
{
    struct dt_saver *s;
    *saver = NULL;
    dt_status status = DT_NEW(&s, 1, "saving checkpoints");
    if (status == DT_OK)
        status = dt_worker_start(&s->worker);
    status = dt_agree(config->comm, status);
    if (status != DT_OK) {
        dt_saver_destroy(s);
        return status;
    }
    s->config = *config;
    s->begun = dt_seconds();
    s->retry_at = INFINITY;
    note_best(s, config->state);
    // Folder names are unique per process, whatever a killed process has left.
    s->id = dt_nanoseconds() ^ (uint64_t)getpid() << 40;
    const struct dt_checkpoint_arrays *arrays = &config->snapshot->host;
    bool spread = dt_pieces_are_spread(&arrays->states.pieces, arrays->params->elements);
    s->parts = spread ? config->comm->info.size : 1;
    *saver = s;
    return dt_broadcast(config->comm, &s->id, sizeof s->id, 0);
}

bool dt_saver_is_free(const struct dt_saver *s)
{
    return s->phase == FREE;
}

bool dt_saver_is_overdue(const struct dt_saver *s, double seconds)
{
    double now = dt_seconds();
    return now >= s->retry_at || (seconds > 0 && now - s->begun >= seconds);
}

// ---- on the writing thread

static dt_status publish(struct dt_saver *s)
{
    const struct dt_saver_config *c = &s->config;
    uint64_t begin = dt_trace_begin();
    DT_TRY(c->sync(c->context)); // metrics must reach the checkpoint's step
    DT_TRY(dt_checkpoint_publish(&s->draft, &c->snapshot->host, &s->manifest));
    dt_trace_end(DT_LANE_CHECKPOINT, "publish", begin, 0);
    s->write_s = dt_seconds() - s->begun;

    // A failure from here on loses no checkpoint. After bad steps the previous checkpoint may be
    // the only good one (optim.rollback).
    int64_t best = c->best ? s->state.best_step : 0;
    dt_checkpoint_mark_best(c->dir, best);
    dt_status status = c->published(c->context, s->state.step);
    if (status == DT_OK && s->state.bad_in_a_row == 0)
        status = dt_checkpoint_prune(c->dir, c->keep, s->state.step, best);
    if (status != DT_OK)
        dt_warn("after the checkpoint of step %lld: %s", (long long)s->state.step,
                dt_error_current()->message);
    dt_error_clear();
    return DT_OK;
}

static dt_status write_part(void *saver)
{
    struct dt_saver *s = saver;
    const struct dt_saver_config *c = &s->config;
    uint64_t waiting = dt_trace_begin();
    dt_status status = dt_snapshot_wait(c->snapshot);
    dt_trace_end(DT_LANE_CHECKPOINT, "waiting for the snapshot", waiting, 0);
    uint64_t writing = dt_trace_begin();
    if (status == DT_OK)
        status =
            dt_checkpoint_write(&s->draft, &c->snapshot->host, &s->state, c->train, &s->manifest);
    int64_t bytes = 0;
    for (int i = 0; i < s->manifest.n; i++)
        bytes += s->manifest.files[i].size;
    dt_trace_end(DT_LANE_CHECKPOINT, "write", writing, bytes);
    if (status == DT_OK && s->parts == 1)
        status = publish(s);
    if (status != DT_OK && s->parts == 1)
        dt_checkpoint_discard(&s->draft);
    return dt_error_during_run(status);
}

static dt_status publish_parts(void *saver)
{
    return dt_error_during_run(publish(saver));
}

static dt_status discard_parts(void *saver)
{
    dt_checkpoint_discard(&((struct dt_saver *)saver)->draft);
    return DT_OK;
}

// ---- on the training thread

dt_status dt_saver_begin(struct dt_saver *s, double start)
{
    const struct dt_saver_config *c = &s->config;
    s->begun = dt_seconds();
    s->retry_at = INFINITY;
    s->state = *c->state;
    dt_manifest_free(&s->manifest);
    DT_TRY(dt_checkpoint_draft(c->dir, s->state.step, s->id++, c->comm->info.rank, s->parts,
                               &s->draft));
    if (s->draft.part < s->draft.parts)
        dt_worker_begin(s->worker, write_part, s);
    s->phase = WRITING;
    s->stall_s = dt_seconds() - start;
    return DT_OK;
}

// Ends the process if the write makes no progress. Ranks that wait for this one name it earlier.
static void check_progress(struct dt_saver *s, double patience)
{
    if (dt_worker_silence(s->worker) <= patience)
        return;
    DT_FAIL(DT_MACHINE, "look at that file system, then resume with the same command",
            "writing the checkpoint %s: no progress for comm.timeout_s = %g s", s->draft.path,
            s->config.timeout_s);
    dt_die();
}

struct dt_save_votes dt_saver_vote(struct dt_saver *s)
{
    check_progress(s, s->config.timeout_s);
    bool writing = dt_worker_is_busy(s->worker);
    return (struct dt_save_votes){writing, !writing && dt_worker_has_failed(s->worker)};
}

static void enter(struct dt_saver *s, enum phase phase, dt_work *work_of_root)
{
    s->phase = phase;
    if (phase != FREE && s->config.comm->info.rank == 0)
        dt_worker_begin(s->worker, work_of_root, s);
}

static dt_status fail(struct dt_saver *s, enum dt_patience patience)
{
    struct dt_comm *comm = s->config.comm;
    dt_status status = dt_agree(comm, dt_worker_outcome(s->worker));
    enter(s, s->parts > 1 ? DISCARDING : FREE, discard_parts);
    s->retry_at = dt_seconds() + retry_s;
    struct dt_trainer_state *state = s->config.state;
    if (s->config.best && state->best_step == s->state.step) { // the best is the one just saved
        state->best_step = s->best_step;
        state->best_loss = s->best_loss;
        state->evaluations_since_best = state->evaluations - s->best_evaluation;
        s->config.reset(s->config.context);
    }
    if (!comm->agreed || patience == DT_WAIT_AND_FAIL)
        DT_TRY_NOTE(status, "saving the checkpoint of step %lld", (long long)s->state.step);
    const struct dt_error *error = dt_error_current();
    dt_warn("the checkpoint of step %lld is not saved: %s%s%s%s; training continues, and tries "
            "again when the next one is due, or after %.0f s",
            (long long)s->state.step, error->message, error->hint[0] ? " (" : "", error->hint,
            error->hint[0] ? ")" : "", retry_s);
    dt_error_clear();
    comm->agreed = false;
    return DT_OK;
}

// Called when all parts are written: rank 0 lists their files.
static dt_status join_parts(struct dt_saver *s)
{
    struct dt_comm *comm = s->config.comm;
    struct dt_manifest_file *files;
    dt_status status = DT_OK;
    DT_TRY(DT_NEW(&files, s->parts, "the files of %d ranks", s->parts));
    files[comm->info.rank] = s->manifest.files[0];
    DT_TRY_GOTO(status, out, dt_all_gather(comm, files, sizeof *files));
    for (int part = 1; part < s->parts && comm->info.rank == 0; part++)
        DT_TRY_GOTO(
            status, out,
            dt_manifest_add(&s->manifest, files[part].name, files[part].size, files[part].hash));
    enter(s, PUBLISHING, publish_parts);
out:
    free(files);
    return status;
}

static dt_status complete(struct dt_saver *s, double waiting_since)
{
    const struct dt_saver_config *c = &s->config;
    struct dt_saved saved = {.step = s->state.step,
                             .path = s->draft.path,
                             .stall_ms = (s->stall_s + dt_seconds() - waiting_since) * 1e3,
                             .write_ms = s->write_s * 1e3};
    s->phase = FREE;
    note_best(s, &s->state);
    return c->comm->info.rank == 0 ? c->log(c->context, &saved) : DT_OK;
}

static dt_status advance(struct dt_saver *s, const struct dt_save_votes *sum,
                         enum dt_patience patience, double waiting_since)
{
    if (s->phase == FREE || sum->writing > 0)
        return DT_OK;
    if (s->phase == DISCARDING) {
        s->phase = FREE;
        return DT_OK;
    }
    if (sum->failed > 0)
        return fail(s, patience);
    if (s->phase == WRITING && s->parts > 1)
        return join_parts(s);
    return complete(s, waiting_since);
}

dt_status dt_saver_advance(struct dt_saver *s, const struct dt_save_votes *sum)
{
    return advance(s, sum, DT_WAIT, dt_seconds());
}

dt_status dt_saver_settle(struct dt_saver *s, enum dt_patience patience)
{
    double start = dt_seconds();
    double until = patience == DT_WAIT_BRIEFLY ? s->begun + brief_s : INFINITY;
    while (s->phase != FREE) {
        while (dt_seconds() < until && !dt_worker_wait(s->worker, report_s)) {
            if (dt_worker_silence(s->worker) < 2 * report_s) // it makes progress, so others should
                                                             // wait
                dt_comm_busy(s->config.comm);
            check_progress(s, s->config.timeout_s + margin_s);
        }
        struct dt_save_votes votes = dt_saver_vote(s);
        DT_TRY(dt_allreduce(s->config.comm, &votes, 2, DT_F64, DT_SUM));
        DT_TRY(advance(s, &votes, patience, start));
        if (votes.writing > 0 && patience == DT_WAIT_BRIEFLY)
            break;
    }
    if (s->phase != FREE)
        s->stall_s += dt_seconds() - start;
    return DT_OK;
}

void dt_saver_destroy(struct dt_saver *s)
{
    if (!s)
        return;
    if (s->phase != FREE) {
        struct dt_error error;
        bool agreed = s->config.comm->agreed;
        dt_error_take(&error);
        dt_saver_settle(s, DT_WAIT);
        dt_error_restore(&error);
        s->config.comm->agreed = agreed;
    }
    dt_worker_stop(s->worker);
    dt_manifest_free(&s->manifest);
    free(s);
}
