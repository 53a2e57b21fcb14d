// The watchdog of NCCL's communicator reports what has run for long, on counts that the test makes
// up.
#include "test_nccl.h"

#include "base/clock.h"

// Returns whether the watchdog, within a few of its looks, reports a wait that began at `begun` or
// later.
static bool counts_from(const struct dt_comm_devices *devices, double begun)
{
    int waits = 0;
    while (devices->waited > dt_seconds() - begun && waits++ < 2000)
        dt_sleep(1e-3);
    return waits < 2000;
}

static void wait_long(const struct dt_comm_devices *devices)
{
    for (int waits = 0; devices->waited < 0.3 && waits < 10000; waits++)
        dt_sleep(1e-3);
}

// The watchdog reports how long the device has been in a collective, or a thread in a call of NCCL,
// each counted from its own start, and stops reporting it when it ends.
void test_watchdog(void)
{
    struct nccl_counts counts = {.begun = 3, .done = 2};
    struct nccl_call call = {.peer = -1};
    struct nccl_comm nccl = {.comm = comm, .n = 1, .counts = &counts, .calls = &call};
    struct dt_comm_devices *devices = &comm->control->devices;
    pthread_mutex_init(&nccl.lock, NULL);
    sem_init(&nccl.stop, 0, 0);
    need(dt_nccl_watch_start(&nccl));
    wait_long(devices);
    CHECK_INT(devices->oldest, 3);
    double begun = dt_seconds();
    __atomic_store_n(&counts.begun, 4, __ATOMIC_RELEASE);
    __atomic_store_n(&counts.done, 3, __ATOMIC_RELEASE);
    CHECK(counts_from(devices, begun), "collective 4 has waited for %g s", devices->waited);
    wait_long(devices);
    CHECK_INT(devices->oldest, 4);
    begun = dt_seconds();
    nccl.entered = 1;
    __atomic_store_n(&counts.done, 4, __ATOMIC_RELEASE);
    CHECK(counts_from(devices, begun), "a call has waited for %g s", devices->waited);
    wait_long(devices);
    begun = dt_seconds();
    nccl.left = 1;
    nccl.entered = 2;
    CHECK(counts_from(devices, begun), "the next one has waited for %g s", devices->waited);
    wait_long(devices);
    CHECK_INT(devices->oldest, 4); // as far as the others
    dt_nccl_watch_stop(&nccl);
    CHECK_INT(devices->oldest, 0);
    CHECK(devices->waited <= 0, "it still waits for %g s", devices->waited);
    sem_destroy(&nccl.stop);
    pthread_mutex_destroy(&nccl.lock);
}
