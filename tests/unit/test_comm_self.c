// A single process needs no launcher and never starts MPI. Every collective is the identity.
#include "comm/backends.h"
#include "comm/comm.h"
#include "comm/job_control.h"
#include "comm/process.h"
#include "test.h"

#include <mpi.h>

static void check_collectives(struct dt_comm *comm)
{
    float x[3] = {1, 2, 3};
    int64_t bytes = 3;
    void *buffer = x;
    CHECK_OK(dt_allreduce(comm, x, 3, DT_F32, DT_SUM));
    CHECK(x[0] == 1 && x[1] == 2 && x[2] == 3, "the sum over one rank is not itself");
    CHECK_OK(dt_broadcast(comm, x, 12, 0));
    CHECK_OK(dt_barrier(comm));
    CHECK_OK(dt_broadcast_buffer(comm, &buffer, &bytes, 0));
    CHECK(buffer == x && bytes == 3, "the root's buffer was replaced");
    struct dt_collective c = {.operation = DT_REDUCE_SCATTER,
                              .dtype = DT_F32,
                              .count = 3,
                              .data = x,
                              .order = DT_SUM_TREE};
    CHECK_OK(dt_collective(comm, &c));
    c.order = DT_SUM_FAST;
    c.operation = DT_ALL_GATHER;
    CHECK_OK(dt_collective(comm, &c));
    CHECK(x[0] == 1 && x[1] == 2 && x[2] == 3, "the block of one rank is not itself");
    c.operation = DT_EXCHANGE; // there is no other rank
    CHECK_INT(dt_collective(comm, &c), DT_MACHINE);
    CHECK_INT(dt_broadcast(comm, x, 12, 1), DT_MACHINE);
    dt_error_clear();
}

static void check_slurm_alone(void)
{
    struct dt_comm *comm;
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "4", 1);
    CHECK_INT(dt_comm_launched_size(), 1); // a batch script
    CHECK_INT(dt_comm_batch_tasks(), 4);
    CHECK_OK(dt_comm_open(DT_COMM_KIND_AUTO, &comm));
    CHECK_STR(comm->info.backend, "self");
    dt_comm_close(comm);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1); // a task of srun
    CHECK_INT(dt_comm_launched_size(), 4);
    CHECK_INT(dt_comm_batch_tasks(), 1);
    CHECK_INT(dt_comm_open(DT_COMM_KIND_AUTO, &comm), DT_USER);
    CHECK_ADVISES("srun --mpi=pmix");
    dt_error_clear();
}

static void count(void *records, bool always)
{
    *(int *)records += always;
}

// No record may be written after another rank's last words.
static void check_record(struct dt_comm *comm)
{
    int records = 0;
    dt_comm_set_record(comm, count, &records);
    dt_comm_write_record(comm, true);
    CHECK_INT(records, 1);
    atomic_store(&comm->control->spoken, true);
    dt_comm_write_record(comm, true);
    CHECK_INT(records, 1);
    atomic_store(&comm->control->spoken, false);
    dt_comm_set_record(comm, NULL, NULL);
}

// A process is identified by its pid and its time of start, because pids are reused.
static void check_process(void)
{
    struct dt_process self = dt_process_self(), other = self;
    CHECK(self.space != 0, "no space");
    CHECK_INT(dt_process_look(&self), DT_PROCESS_RUNS);
    other.started++;
    CHECK_INT(dt_process_look(&other), DT_PROCESS_GONE);
}

int main(void)
{
    struct dt_comm *comm;
    int touched;
    CHECK_OK(dt_comm_open(DT_COMM_KIND_AUTO, &comm));
    CHECK_STR(comm->info.backend, "self");
    CHECK_INT(comm->info.size, 1);
    CHECK_INT(comm->info.local_size, 1);
    CHECK_INT(comm->info.rank, 0);
    CHECK(comm->info.host[0] != 0, "no host name");
    check_collectives(comm);
    check_record(comm);
    CHECK_OK(dt_agree(comm, DT_OK));
    CHECK_INT(dt_agree(comm, DT_FAIL(DT_USER, "a hint", "a reason")), DT_USER);
    CHECK_STR(dt_error_current()->message, "a reason");
    CHECK_STR(dt_error_current()->hint, "a hint");
    dt_error_clear();
    char text[64];
    DT_FAIL(DT_MACHINE, NULL, "the disk is full");
    CHECK_INT(dt_comm_last_words(comm, dt_error_current(), 0, text, sizeof text), 32);
    CHECK_STR(text, "dtrain: error: the disk is full\n");
    CHECK_INT(dt_comm_last_words(comm, dt_error_current(), 0, text, 20), 19);
    CHECK_INT(strlen(text), 19);
    comm->info.size = 2; // with several ranks, the message says which one failed, and where
    snprintf(comm->info.host, sizeof comm->info.host, "n1");
    dt_comm_last_words(comm, dt_error_current(), 0, text, sizeof text);
    CHECK_STR(text, "dtrain: error: rank 0 on n1, start-up: the disk is full\n");
    dt_comm_progress(comm, 0, "saving");
    dt_comm_last_words(comm, dt_error_current(), 0, text, sizeof text);
    CHECK_STR(text, "dtrain: error: rank 0 on n1, step 0, saving: the disk is full\n");
    comm->info.size = 1;
    dt_error_clear();
    dt_comm_terminated(comm);
    dt_comm_close(comm);
    dt_comm_close(NULL);
    check_slurm_alone();
    check_process();
    MPI_Initialized(&touched);
    CHECK(!touched, "a lone process initialised MPI");
    return test_end();
}
