// What all communicators share: the choice of one, checks before dispatch, agreement on a status,
// and the words with which a rank ends. Calls the table of a backend, never MPI.
#include "comm/comm.h"

#include "comm/backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool set_in_environment(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

bool dt_launched_by_mpi(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (set_in_environment(names[i]))
            return true;
    return false;
}

bool dt_is_one_of_slurm_tasks(void)
{
    const char *tasks = getenv("SLURM_NTASKS");
    return set_in_environment("SLURM_PROCID") && tasks && strtol(tasks, NULL, 10) > 1;
}

dt_status dt_comm_open(enum dt_comm_kind kind, struct dt_comm **comm)
{
    *comm = NULL;
    if (kind == DT_COMM_KIND_AUTO)
        kind = dt_launched_by_mpi() || dt_is_one_of_slurm_tasks() ? DT_COMM_KIND_MPI
                                                                  : DT_COMM_KIND_SELF;
    if (kind == DT_COMM_KIND_SELF)
        DT_TRY(dt_comm_open_self(comm));
    else
        DT_TRY(dt_comm_open_mpi(comm));
    return DT_OK;
}

void dt_comm_prepare(struct dt_comm *comm, const struct dt_comm_table *table)
{
    comm->table = table;
    comm->agreed = false;
    atomic_init(&comm->step, -1);
    atomic_init(&comm->phase, "start-up");
    atomic_init(&comm->timeout_s, 600.0);
    atomic_init(&comm->spoken, false);
    atomic_init(&comm->devices.begun, 0);
    atomic_init(&comm->devices.oldest, 0);
    atomic_init(&comm->devices.waited, 0.0);
    atomic_init(&comm->devices.failed, false);
    atomic_init(&comm->devices.peer_failed, false);
    pthread_mutex_init(&comm->record_lock, NULL);
    atomic_init(&comm->record, NULL);
}

void dt_comm_close(struct dt_comm *comm)
{
    if (comm)
        comm->table->close(comm);
}

_Noreturn void dt_comm_abort(struct dt_comm *comm, int code)
{
    if (comm->agreed && comm->info.rank != 0)
        sleep(2); // all ranks have this error: rank 0 is to say it first
    comm->table->abort(comm, code);
    _Exit(code);
}

void dt_comm_terminated(struct dt_comm *comm)
{
    comm->table->terminated(comm);
}

bool dt_comm_agreed(const struct dt_comm *comm)
{
    return comm->agreed;
}

dt_status dt_comm_end_if_alone(const struct dt_comm *comm, dt_status status)
{
    if (status != DT_OK && comm->info.size > 1 && !comm->agreed)
        dt_die();
    return status;
}

void dt_comm_set_timeout(struct dt_comm *comm, double seconds)
{
    atomic_store(&comm->timeout_s, seconds);
}

void dt_comm_progress(struct dt_comm *comm, int64_t step, const char *phase)
{
    atomic_store(&comm->step, step);
    atomic_store(&comm->phase, phase);
}

void dt_comm_last_progress(const struct dt_comm *comm, int64_t *step, const char **phase)
{
    *step = atomic_load(&comm->step);
    *phase = atomic_load(&comm->phase);
}

void dt_comm_set_record(struct dt_comm *comm, dt_comm_record *record, void *context)
{
    pthread_mutex_lock(&comm->record_lock);
    atomic_store(&comm->record, record);
    comm->record_context = context;
    pthread_mutex_unlock(&comm->record_lock);
}

void dt_comm_say_record(struct dt_comm *comm, bool always)
{
    pthread_mutex_lock(&comm->record_lock);
    dt_comm_record *record = atomic_load(&comm->record);
    if (record && !atomic_load(&comm->spoken))
        record(comm->record_context, always);
    pthread_mutex_unlock(&comm->record_lock);
}

static int describe_place(const struct dt_comm *comm, char *text, size_t size)
{
    int64_t step;
    const char *phase;
    dt_comm_last_progress(comm, &step, &phase);
    if (comm->info.size == 1)
        return snprintf(text, size, DT_LAST_WORDS_BEGIN);
    if (step < 0)
        return snprintf(text, size, DT_LAST_WORDS_BEGIN "rank %d on %s, %s: ", comm->info.rank,
                        comm->info.host, phase);
    return snprintf(text, size,
                    DT_LAST_WORDS_BEGIN "rank %d on %s, step %lld, %s: ", comm->info.rank,
                    comm->info.host, (long long)step, phase);
}

size_t dt_comm_last_words(struct dt_comm *comm, const struct dt_error *error, int debug, char *text,
                          size_t size)
{
    enum dt_voice voice;
    int used;
    if (size == 0 || (comm->agreed && comm->info.rank != 0))
        return 0;
    voice = comm->table->claim(comm);
    if (voice == DT_VOICE_NONE)
        return 0;
    dt_comm_say_record(comm, voice == DT_VOICE_JOB);
    if (voice == DT_VOICE_RANK)
        used = describe_place(comm, text, size);
    else
        used = snprintf(text, size, DT_LAST_WORDS_BEGIN);
    if ((size_t)used >= size)
        return size - 1;
    return (size_t)used + dt_error_format(error, debug, text + used, size - (size_t)used);
}

static bool can_reduce(enum dt_dtype dtype)
{
    return dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F64 || dtype == DT_I64;
}

dt_status dt_allreduce_begin(struct dt_comm *comm, void *data, int64_t count, enum dt_dtype dtype,
                             enum dt_reduce_op op, struct dt_request **request)
{
    *request = NULL;
    if (count < 0 || (count > 0 && !data))
        return DT_FAIL(DT_MACHINE, NULL, "all-reduce of %lld elements at %p", (long long)count,
                       data);
    if (!can_reduce(dtype))
        return DT_FAIL(DT_MACHINE, NULL, "all-reduce of %s: only fp32, bf16, fp64 and int64 are",
                       dt_dtype_name(dtype));
    DT_TRY(comm->table->allreduce_begin(comm, data, count, dtype, op, request));
    return DT_OK;
}

dt_status dt_wait(struct dt_comm *comm, struct dt_request *request)
{
    DT_TRY(comm->table->wait(comm, request));
    return DT_OK;
}

dt_status dt_allreduce(struct dt_comm *comm, void *data, int64_t count, enum dt_dtype dtype,
                       enum dt_reduce_op op)
{
    struct dt_request *request = NULL;
    DT_TRY(dt_allreduce_begin(comm, data, count, dtype, op, &request));
    DT_TRY(dt_wait(comm, request));
    return DT_OK;
}

static dt_status check_bytes(const struct dt_comm *comm, const char *what, int64_t bytes, int root)
{
    if (bytes < 0 || root < 0 || root >= comm->info.size)
        return DT_FAIL(DT_MACHINE, NULL, "%s of %lld bytes with root %d among %d ranks", what,
                       (long long)bytes, root, comm->info.size);
    return DT_OK;
}

dt_status dt_broadcast(struct dt_comm *comm, void *data, int64_t bytes, int root)
{
    DT_TRY(check_bytes(comm, "broadcast", bytes, root));
    DT_TRY(comm->table->broadcast(comm, data, bytes, root));
    return DT_OK;
}

dt_status dt_gather(struct dt_comm *comm, const void *mine, int64_t bytes, void *all, int root)
{
    DT_TRY(check_bytes(comm, "gather", bytes, root));
    DT_TRY(comm->table->gather(comm, mine, bytes, all, root));
    return DT_OK;
}

dt_status dt_barrier(struct dt_comm *comm)
{
    int64_t nothing = 0;
    DT_TRY(dt_allreduce(comm, &nothing, 1, DT_I64, DT_SUM));
    return DT_OK;
}

// An error record as it travels: texts only, no pointers.
struct wire_error {
    char host[DT_HOST_NAME];
    char message[DT_ERROR_MESSAGE];
    char hint[DT_ERROR_HINT];
    int n_notes;
    char notes[DT_ERROR_FRAMES][sizeof((struct dt_error_frame *)0)->note];
};

// The calling thread's error moves into `wire`, which is all zeros.
static void pack_error(const struct dt_comm *comm, struct wire_error *wire)
{
    struct dt_error error;
    dt_error_take(&error);
    if (error.code == DT_OK)
        snprintf(error.message, sizeof error.message, "failed and left no message");
    snprintf(wire->host, sizeof wire->host, "%s", comm->info.host);
    memcpy(wire->message, error.message, sizeof wire->message);
    memcpy(wire->hint, error.hint, sizeof wire->hint);
    for (int i = 0; i < error.n_frames; i++)
        if (error.frames[i].note[0])
            memcpy(wire->notes[wire->n_notes++], error.frames[i].note, sizeof wire->notes[0]);
}

static dt_status raise_shared(dt_status status, const struct wire_error *wire, int rank,
                              int64_t failed)
{
    char others[64] = "", place[DT_HOST_NAME + 128] = "";
    if (failed > 1)
        snprintf(others, sizeof others, " (and %lld other rank%s)", (long long)failed - 1,
                 failed > 2 ? "s" : "");
    if (rank > 0 || failed > 1)
        snprintf(place, sizeof place, "rank %d on %s%s: ", rank, wire->host, others);
    DT_FAIL(status, wire->hint[0] ? wire->hint : NULL, "%s%s", place, wire->message);
    for (int i = 0; i < wire->n_notes; i++)
        dt_error_push(status, __FILE__, __LINE__, __func__, "%s", wire->notes[i]);
    return status;
}

// Some rank has failed: all take over the error of the lowest one, `first`.
static dt_status share_error(struct dt_comm *comm, dt_status mine, dt_status worst, int first)
{
    struct wire_error wire;
    int64_t failed = mine != DT_OK;
    memset(&wire, 0, sizeof wire);
    if (mine != DT_OK)
        pack_error(comm, &wire);
    DT_TRY(dt_allreduce(comm, &failed, 1, DT_I64, DT_SUM));
    DT_TRY(dt_broadcast(comm, &wire, (int64_t)sizeof wire, first));
    comm->agreed = true;
    return raise_shared(worst, &wire, first, failed);
}

dt_status dt_agree(struct dt_comm *comm, dt_status mine)
{
    int64_t size = comm->info.size;
    // {the worst status, size - the lowest failing rank}, zeros where all is well
    int64_t worst[2] = {(int64_t)mine, mine == DT_OK ? 0 : size - comm->info.rank};
    comm->agreed = false;
    DT_TRY(dt_allreduce(comm, worst, 2, DT_I64, DT_MAX));
    if (worst[0] == DT_OK)
        return DT_OK;
    return share_error(comm, mine, (dt_status)worst[0], (int)(size - worst[1]));
}

dt_status dt_broadcast_buffer(struct dt_comm *comm, void **data, int64_t *bytes, int root)
{
    bool is_root = comm->info.rank == root;
    dt_status status = DT_OK;
    DT_TRY(dt_broadcast(comm, bytes, (int64_t)sizeof *bytes, root));
    if (!is_root && !(*data = malloc(*bytes > 0 ? (size_t)*bytes : 1)))
        status = DT_FAIL(DT_MACHINE, NULL, "no memory for %lld bytes from rank %d",
                         (long long)*bytes, root);
    DT_TRY_GOTO(status, out, dt_agree(comm, status));
    DT_TRY_GOTO(status, out, dt_broadcast(comm, *data, *bytes, root));
out:
    if (status != DT_OK && !is_root) {
        free(*data);
        *data = NULL;
    }
    return status;
}
