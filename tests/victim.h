// What the programs share that train nothing and in which one rank meets its fate: the
// communicator, the end of the process wired as in main.c, and the time of the fate.
#pragma once

#include "base/clock.h"
#include "comm/comm_mpi.h"
#include "comm/job_control.h"

#include <fcntl.h>
#include <unistd.h>

static struct dt_comm *comm;

static void die(const struct dt_error *error)
{
    static char text[16384];
    size_t length = dt_comm_last_words(comm, error, 0, text, sizeof text);
    if (length > 0 && write(STDERR_FILENO, text, length) < 0)
        _exit(1);
    dt_comm_abort(comm, (int)error->code);
}

// Waits until this rank's heartbeats say where it is, and have reached all.
static void wait_for_beats(void)
{
    const volatile int64_t *number =
        &mpi_of(comm)->watch.peers[comm->info.rank].beat.number; // of the communication thread
    for (int64_t last = *number + 4; *number < last;)
        dt_sleep(0.01);
}

// The time at which the rank meets its fate, for the script that waits for the end of the job: the
// modification time of this file in the working directory.
static void mark_fate(void)
{
    int fd = open("fate", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || close(fd) != 0)
        _exit(1);
}
