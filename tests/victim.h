// Shared by test programs that do not train and in which one rank fails on purpose: the
// communicator, the end of the process as in main.c, common failures, and when they happened.
#pragma once

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm_mpi.h"
#include "comm/job_control.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dt_comm *comm;
static atomic_bool terminated; // SIGTERM was received

static void die(const struct dt_error *error)
{
    static char text[16384];
    size_t length = dt_comm_last_words(comm, error, 0, text, sizeof text);
    if (length > 0 && write(STDERR_FILENO, text, length) < 0)
        _exit(1);
    dt_comm_abort(comm, (int)error->code);
}

// Waits until this rank's heartbeats report its position and have reached all ranks.
static void wait_for_beats(void)
{
    const volatile int64_t *number =
        &mpi_of(comm)->watch.peers[comm->info.rank].beat.number; // of the communication thread
    for (int64_t last = *number + 4; *number < last;)
        dt_sleep(0.01);
}

// Records the time of the failure for the script that waits for the end of the job: the
// modification time of this file in the working directory.
static void mark_fate(void)
{
    int fd = open("fate", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || close(fd) != 0)
        _exit(1);
}

// Executes the failure named by `fate`; does nothing for other words.
static dt_status suffer(const char *fate)
{
    if (strcmp(fate, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(fate, "stop") == 0)
        raise(SIGSTOP);
    if (strcmp(fate, "sleep") == 0)
        dt_sleep(60);
    if (strcmp(fate, "late") == 0)
        dt_sleep(1.5);
    if (strcmp(fate, "fail") == 0)
        return DT_FAIL(DT_MACHINE, "free some space", "the disk is full");
    return DT_OK;
}

static void on_signal(int number)
{
    (void)number;
    atomic_store(&terminated, true);
    dt_comm_terminated(comm);
}

static void open_job(enum dt_comm_kind kind, const char *timeout_s)
{
    if (dt_comm_open(kind, &comm) != DT_OK)
        dt_die();
    dt_die_register(die);
    signal(SIGTERM, on_signal);
    dt_comm_set_timeout(comm, timeout_s ? atof(timeout_s) : 600);
    dt_log_quiet(comm->info.rank != 0);
}

static int close_job(dt_status status)
{
    dt_comm_end_if_alone(comm, status);
    if (status != DT_OK && comm->info.rank == 0)
        dt_error_print(dt_error_current(), 0);
    dt_comm_close(comm);
    return (int)status;
}
