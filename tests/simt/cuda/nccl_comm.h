// Shared by the files of the simulated NCCL: nccl.c is the interface, nccl_meeting.c the memory
// shared by ranks, nccl_collective.c the work on the device's thread, nccl_settings.c faults and
// algorithms requested by the environment.
#pragma once

#include <nccl.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { RANKS = 16, PIECE = 1 << 18 };

// What a rank posted, so that the others can check that all run the same collective.
struct signature {
    uint64_t count, at;
    int type, kind;
};

struct seat {
    _Atomic(int) size; // the size that the rank expects; 0: it has not joined
    char uuid[16];
    _Atomic(uint64_t) posted, done; // numbers of pieces since the start
    _Atomic(bool) finalized;
    struct signature signatures[2]; // of the last two pieces
};

// Messages from one rank to another.
struct box {
    _Atomic(uint64_t) sent, received; // numbers of pieces
    struct signature signature;
    char piece[PIECE];
};

struct meeting {
    struct seat seats[RANKS];
    char pieces[RANKS][2][PIECE];
    struct box boxes[RANKS][RANKS]; // [from, to]
};

enum stage { JOINING, READY, FINALIZING, FINALIZED };

enum kind { ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, EXCHANGE };

struct call {
    struct ncclComm *comm;
    enum kind kind;
    const char *from; // what this rank gives; exchange: what it sends, or NULL
    char *to;         // receives the result; exchange: what it receives, or NULL
    int peer;
    uint64_t count; // elements: of the whole, with all blocks; exchange: those received
    uint64_t at;    // elements that are done
    uint64_t out;   // exchange: elements that are sent
    uint64_t sent;  // exchange: elements sent so far
    ncclDataType_t type;
    uint64_t turn; // among the calls that are in no graph, from 1; 0: in a graph
    bool begun, posted;
};

struct ncclComm {
    int rank, size, fd;
    int id_fd; // rank 0's, open until all have joined; else -1
    struct meeting *meeting;
    enum stage stage;
    bool blocking, deaf, nvls;
    uint64_t noise;             // equal on all ranks, different in each job
    int64_t stall_at, error_at; // the number of the collective that does so, from 1; 0: none
    int64_t hang_at, calls;     // the number of the call that hangs; calls so far
    bool never_joins;
    _Atomic(int) error;
    bool has_call; // a call that is not on its stream yet
    int polls;
    struct call call;
    void *stream;
    uint64_t turns; // given to calls
    // Used by the device's thread.
    uint64_t ended; // turns
    _Atomic(bool) busy, aborted;
    int64_t begun;
    uint64_t piece;
    struct ncclComm *kept; // a communicator that was aborted earlier
};

struct id {
    int pid, fd;
    uint64_t noise;
};

// In nccl.c, for tests.
extern _Atomic(int) simt_nccl_priority;

// In nccl.c. Both keep the text for ncclGetLastError. turn_bad also ends the communicator's work,
// and returns the first error that did so.
ncclResult_t fail(ncclResult_t result, const char *text);
ncclResult_t turn_bad(struct ncclComm *comm, ncclResult_t result, const char *text);

// In nccl_meeting.c. Rank 0 calls `make_meeting`. `join` is polled until all ranks have joined.
ncclResult_t make_meeting(struct id *id);
ncclResult_t enter_meeting(struct ncclComm *comm, const struct id *id);
ncclResult_t join(struct ncclComm *comm);
ncclResult_t leave_meeting(struct ncclComm *comm);
bool is_gone(const struct ncclComm *comm, int rank);
void leave_files(struct ncclComm *comm);
void close_meeting(struct ncclComm *comm);

// In nccl_collective.c. The work of a task on a stream (enqueue.h); `context` is a struct call.
bool run_call(void *context);

// In nccl_settings.c.
void read_settings(struct ncclComm *comm);
