// Shared by the files of the simulated NCCL: nccl.c is the interface, nccl_meeting.c the memory
// shared by ranks, nccl_collective.c the work on the device's thread, nccl_settings.c faults and
// algorithms requested by the environment.
#pragma once

#include <nccl.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { RANKS = 16, PIECE = 1 << 18 };

// What a rank posted, for the others to see that all do the same.
struct signature {
    uint64_t count, at;
    int type, kind;
};

struct seat {
    _Atomic(int) size; // that the rank knows of; 0: it has not come
    char uuid[16];
    _Atomic(uint64_t) posted, done; // pieces, since the start
    _Atomic(bool) finalized;
    struct signature signatures[2]; // of the last two pieces, as the pieces
};

// A message from one rank to another.
struct box {
    _Atomic(uint64_t) sent, received; // pieces
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
    const char *from; // what this rank gives: an exchange's send, or NULL
    char *to;         // where what it gets goes: an exchange's receive, or NULL
    int peer;
    uint64_t count; // elements, of the whole: of all blocks where there are some; received ones
    uint64_t at;    // … done so far
    uint64_t out;   // exchange: elements that are sent
    uint64_t sent;  // … so far
    ncclDataType_t type;
    bool begun, posted;
};

struct ncclComm {
    int rank, size, fd;
    int id_fd; // rank 0's, open until all have come; -1
    struct meeting *meeting;
    enum stage stage;
    bool blocking, deaf, nvls;
    uint64_t noise;             // the same on all ranks, another in each job
    int64_t stall_at, error_at; // the how many-eth collective; 0: none
    int64_t hang_at, calls;     // the how many-eth call, and calls so far
    bool never_joins;
    _Atomic(int) error;
    bool has_call; // one that is not on its stream yet
    int polls;
    struct call call;
    void *stream;
    // the device's thread's
    _Atomic(bool) busy, aborted;
    int64_t begun;
    uint64_t piece;
    struct ncclComm *kept; // aborted before this one
};

struct id {
    int pid, fd;
    uint64_t noise;
};

// nccl.c: for tests
extern _Atomic(int) simt_nccl_priority;

// nccl.c. Both keep the text for ncclGetLastError; turn_bad also ends the communicator's work, and
// returns the first error that did.
ncclResult_t fail(ncclResult_t result, const char *text);
ncclResult_t turn_bad(struct ncclComm *comm, ncclResult_t result, const char *text);

// nccl_meeting.c. `make_meeting` is rank 0's; `join` is polled until all have come.
ncclResult_t make_meeting(struct id *id);
ncclResult_t enter_meeting(struct ncclComm *comm, const struct id *id);
ncclResult_t join(struct ncclComm *comm);
ncclResult_t leave_meeting(struct ncclComm *comm);
bool is_gone(const struct ncclComm *comm, int rank);
void leave_files(struct ncclComm *comm);
void close_meeting(struct ncclComm *comm);

// nccl_collective.c: a task on a stream (enqueue.h); `context` is a struct call.
bool run_call(void *context);

// nccl_settings.c
void read_settings(struct ncclComm *comm);
