// Job control for all communicators: a rank's progress, record and report of the end. What ranks
// know of each other belongs to the MPI communicator (watch.h).
#include "comm/job_control.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/trace.h"
#include "comm/backends.h"
#include "comm/waits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dt_comm_prepare(struct dt_comm *comm, const struct dt_comm_table *table,
                     struct dt_job_control *control)
{
    *comm = (struct dt_comm){.table = table, .control = control, .info.backend = table->name};
    atomic_init(&control->step, -1);
    atomic_init(&control->phase, "start-up");
    atomic_init(&control->timeout_s, DT_COMM_TIMEOUT_S);
    atomic_init(&control->devices.peer, -1);
    atomic_init(&control->devices.quiet, INFINITY);
    pthread_mutex_init(&control->record_lock, NULL);
}

void dt_comm_progress(struct dt_comm *comm, int64_t step, const char *phase)
{
    atomic_store(&comm->control->step, step);
    atomic_store(&comm->control->phase, phase);
    dt_trace_phase(phase);
}

void dt_comm_last_progress(const struct dt_comm *comm, int64_t *step, const char **phase)
{
    *step = atomic_load(&comm->control->step);
    *phase = atomic_load(&comm->control->phase);
}

void dt_comm_set_timeout(struct dt_comm *comm, double seconds)
{
    atomic_store(&comm->control->timeout_s, seconds);
}

void dt_comm_busy(struct dt_comm *comm)
{
    atomic_fetch_add(&comm->control->reports, 1);
}

_Noreturn void dt_comm_abort(struct dt_comm *comm, int code)
{
    if (comm->agreed && comm->info.rank != 0)
        dt_sleep(dt_wait_s[DT_AGREED]);
    if (comm->table->abort)
        comm->table->abort(comm, code);
    _Exit(code);
}

dt_status dt_comm_end_if_alone(const struct dt_comm *comm, dt_status status)
{
    if (status != DT_OK && comm->info.size > 1 && !comm->agreed)
        dt_die();
    return status;
}

void dt_comm_terminated(struct dt_comm *comm)
{
    if (comm->table->terminated)
        comm->table->terminated(comm);
}

void dt_comm_set_record(struct dt_comm *comm, dt_comm_record *record, void *context)
{
    struct dt_job_control *control = comm->control;
    pthread_mutex_lock(&control->record_lock);
    atomic_store(&control->record, record);
    control->record_context = context;
    pthread_mutex_unlock(&control->record_lock);
}

void dt_comm_write_record(struct dt_comm *comm, bool always)
{
    struct dt_job_control *control = comm->control;
    pthread_mutex_lock(&control->record_lock);
    dt_comm_record *record = atomic_load(&control->record);
    if (record && !atomic_load(&control->spoken))
        record(control->record_context, always);
    pthread_mutex_unlock(&control->record_lock);
}

void dt_comm_append_place(const struct dt_comm *comm, char *text, size_t size)
{
    int64_t step;
    const char *phase;
    dt_comm_last_progress(comm, &step, &phase);
    dt_append(text, size, "rank %d on %s, ", comm->info.rank, comm->info.host);
    if (step >= 0)
        dt_append(text, size, "step %lld, ", (long long)step);
    dt_append(text, size, "%s: ", phase);
}

size_t dt_comm_last_words(struct dt_comm *comm, const struct dt_error *error, int debug, char *text,
                          size_t size)
{
    if (size == 0 || (comm->agreed && comm->info.rank != 0))
        return 0;
    enum dt_voice voice = comm->table->claim ? comm->table->claim(comm) : DT_VOICE_RANK;
    if (voice == DT_VOICE_NONE)
        return 0;
    dt_comm_write_record(comm, voice == DT_VOICE_JOB);
    snprintf(text, size, DT_LAST_WORDS_BEGIN);
    if (voice == DT_VOICE_RANK && comm->info.size > 1)
        dt_comm_append_place(comm, text, size);
    size_t used = strlen(text);
    return used + dt_error_format(error, debug, text + used, size - used);
}
