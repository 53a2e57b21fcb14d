// How the ranks of the simulated NCCL meet: in shared memory without a name (a memfd that rank 0
// creates and the others open through /proc), so that nothing of it remains, however they end. Each
// rank locks its byte of that file. The kernel releases the lock when the process ends, which shows
// its peers that it is gone.
#include "tests/simt/cuda/nccl_comm.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

ncclResult_t make_meeting(struct id *id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *id = (struct id){getpid(), memfd_create("nccl", MFD_CLOEXEC), (uint64_t)now.tv_nsec};
    if (id->fd < 0 || ftruncate(id->fd, sizeof(struct meeting)) != 0)
        return fail(ncclSystemError, "no shared memory");
    return ncclSuccess;
}

static struct flock byte_of(int rank)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

ncclResult_t enter_meeting(struct ncclComm *comm, const struct id *id)
{
    char path[64];
    struct flock byte = byte_of(comm->rank);
    struct cudaDeviceProp properties;
    int device;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
    comm->fd = open(path, O_RDWR | O_CLOEXEC);
    if (comm->fd < 0)
        return fail(ncclSystemError, "rank 0 cannot be reached");
    comm->id_fd = comm->rank == 0 ? id->fd : -1;
    void *memory =
        mmap(NULL, sizeof *comm->meeting, PROT_READ | PROT_WRITE, MAP_SHARED, comm->fd, 0);
    if (memory == MAP_FAILED)
        return fail(ncclSystemError, "no shared memory");
    comm->meeting = memory;
    if (comm->never_joins)
        return ncclSuccess;
    struct seat *seat = &comm->meeting->seats[comm->rank];
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaGetDeviceProperties(&properties, device) != cudaSuccess)
        return fail(ncclUnhandledCudaError, "no device");
    if (fcntl(comm->fd, F_OFD_SETLK, &byte) != 0 || atomic_load(&seat->size) != 0)
        return fail(ncclInvalidArgument, "two ranks have one number");
    memcpy(seat->uuid, properties.uuid.bytes, sizeof seat->uuid);
    atomic_store(&seat->size, comm->size);
    return ncclSuccess;
}

bool is_gone(const struct ncclComm *comm, int rank)
{
    struct flock byte = byte_of(rank);
    const struct seat *seat = &comm->meeting->seats[rank];
    if (rank == comm->rank || atomic_load(&seat->size) == 0 || atomic_load(&seat->finalized))
        return false;
    return fcntl(comm->fd, F_OFD_GETLK, &byte) == 0 && byte.l_type == F_UNLCK;
}

static bool share_a_device(const struct ncclComm *comm)
{
    const struct seat *seats = comm->meeting->seats;
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (allowed && atoi(allowed))
        return false;
    for (int r = 0; r < comm->size; r++)
        for (int other = 0; other < r; other++)
            if (memcmp(seats[r].uuid, seats[other].uuid, sizeof seats[r].uuid) == 0)
                return true;
    return false;
}

ncclResult_t join(struct ncclComm *comm)
{
    if (comm->never_joins)
        return ncclInProgress;
    for (int r = 0; r < comm->size; r++) {
        int size = atomic_load(&comm->meeting->seats[r].size);
        if (size == 0)
            return ncclInProgress;
        if (size != comm->size)
            return turn_bad(comm, ncclInvalidArgument, "the ranks disagree on their number");
    }
    if (share_a_device(comm))
        return turn_bad(comm, ncclInvalidUsage, "Duplicate GPU detected");
    if (comm->id_fd >= 0)
        close(comm->id_fd);
    comm->id_fd = -1;
    comm->stage = READY;
    return ncclSuccess;
}

ncclResult_t leave_meeting(struct ncclComm *comm)
{
    atomic_store(&comm->meeting->seats[comm->rank].finalized, true);
    for (int r = 0; r < comm->size; r++)
        if (!atomic_load(&comm->meeting->seats[r].finalized))
            return ncclInProgress;
    return ncclSuccess;
}

// Releases the lock, so that peers see that this rank is gone.
void leave_files(struct ncclComm *comm)
{
    if (comm->fd >= 0)
        close(comm->fd);
    if (comm->id_fd >= 0)
        close(comm->id_fd);
    comm->fd = comm->id_fd = -1;
}

void close_meeting(struct ncclComm *comm)
{
    if (comm->meeting)
        munmap(comm->meeting, sizeof *comm->meeting);
}
