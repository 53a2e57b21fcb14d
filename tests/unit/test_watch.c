// Tests the watch of whole jobs in one process: this program simulates the clock, MPI's messages
// and the processes of the ranks. A case says what happens at second 10.03 of a job, which is
// between two beats, and which rank must report it, with which message and how many seconds later.
#include "base/error.h"
#include "comm/comm_mpi.h"
#include "comm/waits.h"

#include "captured.h"

#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

enum { RANKS = 8, MESSAGE = RANKS * (int)sizeof(struct dt_beat) };
enum fate {
    RUNS,
    GONE,      // its process ends
    SUSPENDED, // by SIGSTOP
    HANGS,     // it runs, but its thread does nothing more
    LATE,      // it does not enter the collective that the others wait in
    BUSY,      // the same, but it reports for 5 s that it is busy
};

static const double start = 10.03, tick = 0.01;
static double now;
static int self; // the rank that this program simulates now
static enum fate fates[RANKS];
static struct dt_watch watches[RANKS];
static struct dt_peer opened[RANKS];
static struct {
    int bytes; // -1: none
    char data[MESSAGE];
} sent[RANKS][RANKS]; // [from][to]
static int size, per_host;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    *time = (struct timespec){(time_t)now, (long)(1e9 * (now - (double)(time_t)now))};
    return 0;
}

struct dt_process dt_process_self(void)
{
    return (struct dt_process){.space = 1 + (uint64_t)(self / per_host), .pid = 100 + self};
}

enum dt_process_state dt_process_look(const struct dt_process *process)
{
    enum fate fate = fates[process->pid - 100];
    CHECK_INT(process->space, 1 + self / per_host);
    return fate == GONE        ? DT_PROCESS_GONE
           : fate == SUSPENDED ? DT_PROCESS_STOPPED
                               : DT_PROCESS_RUNS;
}

// The functions of MPI that the watch calls. Each rank has a message to each other rank, and a
// request for each.
static MPI_Request request_of(int from, int to, int receives)
{
    return (MPI_Request)(intptr_t)(1 + (receives * RANKS + from) * RANKS + to);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
    return *copy = comm, MPI_SUCCESS;
}
int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    return (void)comm, *rank = self, MPI_SUCCESS;
}
int MPI_Comm_size(MPI_Comm comm, int *n)
{
    return (void)comm, *n = size, MPI_SUCCESS;
}
int MPI_Error_string(int code, char *text, int *length)
{
    return *text = 0, *length = 0, code;
}
int MPI_Comm_free(MPI_Comm *comm)
{
    return (void)comm, MPI_SUCCESS;
}
int MPI_Allgather(const void *mine, int n, MPI_Datatype type, void *all, int n_all,
                  MPI_Datatype type_all, MPI_Comm comm)
{
    (void)mine, (void)n, (void)type, (void)n_all, (void)type_all, (void)comm;
    opened[self] = ((struct dt_peer *)all)[self];
    return MPI_SUCCESS;
}
static void *inbox[RANKS][RANKS];
int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    (void)n, (void)type, (void)tag, (void)comm;
    inbox[from][self] = data;
    return *request = request_of(from, self, 1), MPI_SUCCESS;
}
int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    (void)type, (void)tag, (void)comm;
    *request = request_of(self, to, 0);
    sent[self][to].bytes = n;
    memcpy(sent[self][to].data, data, (size_t)n);
    return MPI_SUCCESS;
}
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    (void)status;
    if (*request == MPI_REQUEST_NULL)
        return *done = 1, MPI_SUCCESS;
    int number = (int)(intptr_t)*request - 1, to = number % RANKS, from = number / RANKS % RANKS;
    bool receives = number >= RANKS * RANKS;
    *done = (sent[from][to].bytes >= 0) == receives;
    if (*done && receives) {
        memcpy(inbox[from][to], sent[from][to].data, (size_t)sent[from][to].bytes);
        sent[from][to].bytes = -1;
    }
    return MPI_SUCCESS;
}
int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *n)
{
    return (void)status, (void)type, *n = size * (int)sizeof(struct dt_beat), MPI_SUCCESS;
}

// A job in which one event happens.
struct scene {
    const char *what;
    int size, per_host;
    enum fate fates[RANKS];
    double timeout;
    bool device;       // the ranks wait for their devices
    bool exchange;     // each rank waits for the next one
    bool record;       // the ranks have records to write
    double terminated; // SIGTERM comes so many seconds later; 0: never
    double after;      // the event comes so many seconds after the others begin to wait
    double pause;      // no process runs for so many seconds
    enum {
        NO_GUARD,
        HERE,
        ANYWHERE,
        WOKEN
    } guard;  // rank 0's guard looks 0.2 s later for ranks of these hosts; or SIGTERM wakes it
    int naps; // the thread does a round in every so many of the guard's naps; 0: in none
    int failed, speaks; // 1 + the rank whose device fails; 1 + the rank that claims the last words
    // Which rank reports (-1: none within 12 s), between which seconds, and how many ranks must be
    // told to write their records.
    int speaker;
    double from, to;
    const char *says;
    int recorded;
};

// clang-format off
static const struct scene scenes[] = {
    {"a death", 4, 4, {[1] = GONE}, 60, .speaker = 0, .from = 0.3, .to = 0.6, .says = "rank 1 on host n0 (pid 101) died at step 41 during reading data; the job ends."},
    {"a death in a phase that has just begun", 4, 4, {[1] = GONE}, 60, .after = 0.04, .speaker = 0, .from = 0.3, .to = 0.6, .says = "rank 1 on host n0 (pid 101) died at step 41 during backward; the job ends."},
    {"a death of rank 0", 4, 4, {GONE}, 60, .speaker = 1, .from = 0.3, .to = 0.6, .says = "rank 0 on host n0 (pid 100) died at"},
    {"three deaths", 4, 4, {[1] = GONE, GONE, GONE}, 60, .speaker = 0, .from = 0.3, .to = 0.6, .says = "rank 1 on host n0 (pid 101) (and 2 others) died at"},
    {"a death, seen by its neighbour", 4, 2, {[3] = GONE}, 60, .speaker = 0, .from = 0.3, .to = 0.8, .says = "rank 3 on host n1 (pid 103) died at step 41 during reading data; the job ends."},
    {"a death on another host", 4, 1, {[2] = GONE}, 60, .speaker = 0, .from = 5.25, .to = 5.6, .says = "rank 2 on host n2 (pid 102) died at step 41 during reading data, or its host cannot be reached;"},
    {"one of eight", 8, 1, {[7] = GONE}, 60, .speaker = 0, .from = 5.37, .to = 5.8, .says = "rank 7 on host n7 (pid 107) died at"},
    {"a host of two", 6, 2, {[2] = GONE, GONE}, 60, .speaker = 0, .from = 5.37, .to = 5.8, .says = "rank 2 on host n1 (pid 102) (and 1 other) died at step 41"},
    {"a death while a lower rank hangs", 4, 4, {HANGS, GONE}, 60, .speaker = 2, .from = 1.8, .to = 2.2, .says = "rank 1 on host n0 (pid 101) died"},
    {"a death, with records", 4, 4, {[1] = GONE}, 60, .record = true, .speaker = 0, .from = 0.75, .to = 1.1, .says = "rank 1 on host n0", .recorded = 3},
    {"a death before SIGTERM", 4, 1, {[1] = GONE}, 60, .terminated = 0.05, .speaker = 0, .from = 0.6, .to = 0.7, .says = "rank 1 on host n1 (pid 101) died"},
    {"a death before SIGTERM, of eight", 8, 1, {[5] = GONE}, 60, .terminated = 0.05, .speaker = 0, .from = 0.6, .to = 0.7, .says = "rank 5 on host n5 (pid 105) died"},
    {"SIGTERM", 4, 1, {RUNS}, 60, .terminated = 0.05, .speaker = -1},
    {"SIGSTOP", 4, 4, {[2] = SUSPENDED}, 2, .speaker = 0, .from = 2, .to = 2.3, .says = "rank 2 on host n0 (pid 102) is suspended (SIGSTOP) at step 41 during reading data: the others waited comm.timeout_s = 2 s"},
    {"SIGSTOP of rank 0", 4, 4, {SUSPENDED}, 2, .speaker = 1, .from = 2, .to = 2.3, .says = "rank 0 on host n0 (pid 100) is suspended"},
    {"SIGSTOP on another host", 4, 1, {[2] = SUSPENDED}, 2, .speaker = 0, .from = 5.25, .to = 5.6, .says = "rank 2 on host n2 (pid 102) died at"},
    {"a late rank", 4, 2, {[3] = LATE}, 2, .speaker = 0, .from = 2, .to = 2.3, .says = "rank 3 on host n1 (pid 103) is stalled at step 41 during reading data: the others waited comm.timeout_s = 2 s"},
    {"two late ranks", 4, 4, {LATE, LATE}, 3, .speaker = 2, .from = 3, .to = 3.3, .says = "rank 0 on host n0 (pid 100) (and 1 other) is stalled"},
    {"a late device", 4, 4, {[3] = LATE}, 2, .device = true, .speaker = 0, .from = 2, .to = 2.3, .says = "rank 3 on host n0 (pid 103) is stalled"},
    {"a busy rank", 4, 4, {[3] = BUSY}, 2, .speaker = 0, .from = 6.9, .to = 7.4, .says = "rank 3 on host n0 (pid 103) is stalled"},
    {"a chain of exchanges", 4, 4, {[3] = LATE}, 2, .exchange = true, .speaker = 0, .from = 2, .to = 2.3, .says = "rank 3 on host n0 (pid 103) is stalled"},
    {"a chain of exchanges with rank 0", 4, 4, {LATE}, 2, .exchange = true, .speaker = 1, .from = 2, .to = 2.3, .says = "rank 0 on host n0 (pid 100) is stalled"},
    {"a network that is silent", 4, 4, {RUNS}, 2, .speaker = 0, .from = 2, .to = 2.3, .says = "a collective of all ranks, at step 41 during backward, timed out after comm.timeout_s = 2 s;"},
    {"a pause of all", 4, 2, {RUNS}, 14, .pause = 100, .speaker = -1},
    {"a death while all pause, which may be why others have ended", 4, 4, {[1] = GONE}, 60, .pause = 100, .speaker = 0, .from = 2, .to = 2.4, .says = "rank 1 on host n0 (pid 101) died at step 41"},
    {"a device that fails", 4, 4, {RUNS}, 60, .record = true, .failed = 1 + 2, .speaker = -1, .recorded = 3},
    {"an error that a rank reports", 4, 4, {RUNS}, 60, .speaks = 1 + 2, .speaker = 3, .from = 2, .to = 2.6, .says = "timed out"},
    {"the guard of a rank that nobody left", 4, 4, {RUNS}, 60, .guard = HERE, .speaker = -1},
    {"the guard of a rank with dead neighbours", 4, 4, {[2] = GONE, GONE}, 60, .guard = HERE, .speaker = 0, .from = 0.2, .to = 0.2, .says = "rank 2 on host n0 (pid 102) (and 1 other) died at step 41 during reading data; the"},
    {"the guard beside a thread that hangs", 2, 2, {[1] = GONE}, 60, .guard = WOKEN, .speaker = 0, .from = 0.2, .to = 0.22, .says = "rank 1 on host n0 (pid 101) died before the first step, during"},
    {"the guard beside a thread that is slow", 2, 2, {[1] = GONE}, 60, .guard = WOKEN, .naps = 15, .speaker = -1},
    {"the guard of one of two hosts", 2, 1, {RUNS}, 60, .guard = ANYWHERE, .speaker = 0, .from = 0.2, .to = 0.2, .says = "rank 1 on host n1 (pid 101) died at step 41 during backward, or its host cannot"},
    {"the guard of one of three hosts", 6, 2, {RUNS}, 60, .guard = ANYWHERE, .speaker = 0, .from = 0.2, .to = 0.2, .says = "rank 4 on host n2 (pid 104), rank 5 on host n2 (pid 105): see"},
    {"the guard of one of four hosts", 8, 2, {RUNS}, 60, .guard = ANYWHERE, .speaker = 0, .from = 0.2, .to = 0.2, .says = "one of 6 ranks on other hosts died at step 41 during backward, or its host cannot be "
        "reached; the job ends. It is one of rank 2 on host n1 (pid 102), rank 3 on host n1 (pid 103), rank 4 on host n2 (pid 104), rank 5 on host n2 (pid 105), …: see"},
};
// clang-format on

static struct result {
    int speaker, recorded;
    double at;
    char says[DT_ERROR_MESSAGE];
} * result; // shared with the child

static const struct scene *scene;
static bool recorded[RANKS];

static void die(const struct dt_error *error)
{
    result->speaker = self;
    result->at = now - start - scene->pause;
    snprintf(result->says, sizeof result->says, "%s", error->message);
    for (int r = 0; r < size; r++)
        result->recorded += recorded[r];
    _exit(0);
}

static void open_watches(void)
{
    for (self = 0; self < size; self++) {
        char host[16];
        snprintf(host, sizeof host, "n%d", self / per_host);
        CHECK_OK(dt_watch_open(&watches[self], host));
    }
    for (int r = 0; r < size; r++)
        for (int peer = 0; peer < size; peer++) {
            memcpy(watches[r].peers[peer].host, opened[peer].host, sizeof opened[peer].host);
            watches[r].peers[peer].process = opened[peer].process;
        }
}

// Runs a round of the communication thread of rank `self`.
static void make_round(void)
{
    static double since[RANKS];
    struct dt_watch *watch = &watches[self];
    enum fate fate = fates[self];
    bool begun = now >= start - tick / 2,
         waits = begun && fate != LATE && fate != BUSY && scene->speaks == 0;
    struct dt_watch_self me = {.beat = {.step = 41, .peer = -1},
                               .timeout = scene->timeout,
                               .device_failed = begun && scene->failed == 1 + self,
                               .has_record = scene->record,
                               .speaks = begun && scene->speaks == 1 + self};
    since[self] = begun ? since[self] : watch->clock;
    double waited = waits ? watch->clock - since[self] : 0;
    snprintf(me.beat.phase, sizeof me.beat.phase, waits ? "backward" : "reading data");
    if (scene->exchange && waits)
        me.beat.peer = (self + 1) % size;
    else if (scene->device)
        me.beat.device_sequence = 100 + waits, me.beat.device_oldest = waits ? 101 : 0;
    else
        me.beat.sequence = 100 + waits, me.beat.oldest = waits ? 101 : 0;
    *(scene->device ? &me.device_waited : &me.waited) = waited;
    if (fate == BUSY)
        me.beat.reports = (int64_t)(10 * fmin(now - start, 5));
    me.terminated = scene->terminated > 0 && fabs(now - start - scene->terminated) < tick / 2;
    dt_watch_tick(watch, &me);
    if (scene->guard != NO_GUARD && self == 0 && fabs(now - start - 0.2) < tick / 2)
        dt_watch_report_lost(watch, scene->guard == ANYWHERE);
    recorded[self] |= watch->wants_record;
}

static struct mpi_comm mpi; // rank 0 here has a guard and no thread

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    static int naps;
    (void)clock, (void)flags, (void)left;
    now = (double)until->tv_sec + 1e-9 * (double)until->tv_nsec;
    if (++naps == 90)
        atomic_store(&mpi.guard_ends, true);
    if (scene->naps > 0 && naps % scene->naps == 0)
        atomic_fetch_add(&mpi.pulse, 1);
    return 0;
}

static void wake_guard(void)
{
    self = 0, now = start;
    memcpy(fates, scene->fates, sizeof fates);
    mpi.watch = watches[0];
    atomic_store(&mpi.pulse, 1);
    sem_init(&mpi.guard_wake, 0, 1);
    dt_mpi_guard(&mpi);
}

static void play(void)
{
    size = scene->size, per_host = scene->per_host, now = 5;
    for (int i = 0; i < RANKS * RANKS; i++)
        sent[i / RANKS][i % RANKS].bytes = -1;
    dt_die_register(die);
    open_watches();
    if (scene->guard == WOKEN) {
        wake_guard();
        return;
    }
    for (int i = 0; i < 1700; i++) {
        now = 5 + tick * i;
        now += now >= start - tick / 2 ? scene->pause : 0;
        if (now >= start + scene->after - tick / 2)
            memcpy(fates, scene->fates, sizeof fates);
        for (self = 0; self < size; self++)
            if (fates[self] != GONE && fates[self] != SUSPENDED && fates[self] != HANGS)
                make_round();
    }
    for (int r = 0; r < size; r++)
        result->recorded += recorded[r];
}

int main(void)
{
    result = mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        scene = &scenes[i];
        *result = (struct result){.speaker = -1};
        int end = in_child(play);
        CHECK(end == 0, "%s: ended by %d", scene->what, end);
        CHECK(result->speaker == scene->speaker &&
                  (!scene->record || result->recorded == scene->recorded),
              "%s: rank %d speaks, not %d, and %d have records, not %d: %s", scene->what,
              result->speaker, scene->speaker, result->recorded, scene->recorded, result->says);
        if (scene->speaker < 0)
            continue;
        CHECK(result->at >= scene->from - 1e-6 && result->at <= scene->to + 1e-6,
              "%s: after %g s, not %g to %g: %s", scene->what, result->at, scene->from, scene->to,
              result->says);
        CHECK(strstr(result->says, scene->says), "%s: %s", scene->what, result->says);
    }
    return test_end();
}
