// Who waits how long as a job ends, in seconds. The times depend on each other: the rank that knows
// what happened must report it before ranks that only suffer from it, and before a launcher kills
// them. Other times are comm.timeout_s and comm.start_timeout_s, which users set, and the silence
// after which a rank counts as dead (dt_watch_silence).
#pragma once

// clang-format off
enum dt_wait {
    DT_PAUSED, DT_HASTY_BEAT, DT_CALMED, DT_UNHEARD, DT_GONE, DT_RECORDED, DT_DEFERRED,
    DT_WOKEN, DT_OVERSLEPT, DT_SPOKEN, DT_HUNG, DT_LOST, DT_TERMINATION, DT_STUCK, DT_FAILED,
    DT_DEVICE_FAILED, DT_DEVICE_EXPIRED, DT_DEVICE_TURN, DT_AGREED, DT_QUIET, DT_UNCLAIMED,
    DT_ABORT, DT_LAUNCHER, DT_FINALIZE, DT_DEVICE_FINALIZE, DT_WAITS
};
static const double dt_wait_s[DT_WAITS] = {
    // wait                 seconds  what holds, and is done, when it is over
    // The watch (watch.c), on its own clock, since …
    [DT_PAUSED]          = 0.5,   // the last tick: this process was suspended; the clock advances no more
    [DT_HASTY_BEAT]      = 0.02,  // a beat, once SIGTERM came: the next one is sent
    [DT_CALMED]          = 0.7,   // SIGTERM: beats are slow again (mpirun kills a second after it)
    [DT_UNHEARD]         = 0.55,  // SIGTERM: a rank on another host that sent no beat since is dead
    [DT_GONE]            = 0.2,   // a process of this host was gone: it is dead, its message has arrived
    [DT_RECORDED]        = 0.2,   // all ranks know of the end: records are written, this rank reports
    [DT_DEFERRED]        = 1.5,   // the end is certain: the right rank did not report it, so any rank does
    [DT_WOKEN]           = 1,     // this process resumed: beats are current, it may write its record
    [DT_OVERSLEPT]       = 2,     // it resumed after half a time-out: nobody blamed this rank for that
    [DT_SPOKEN]          = 2,     // another rank reported the end: no launcher ended this process
    // The guard (comm_mpi_guard.c), while the communication thread makes no round …
    [DT_HUNG]            = 0.2,   // after SIGTERM: it looks for a dead rank on this host
    [DT_LOST]            = 0.5,   // after SIGTERM: it blames a rank on another host
    [DT_TERMINATION]     = 1,     // after SIGTERM: it stops looking (mpirun kills then)
    [DT_STUCK]           = 5,     // after comm.timeout_s: it ends the process
    // A rank whose collective failed or timed out, while the watch may know more …
    [DT_FAILED]          = 7,     // MPI: no rank was found dead, so the error is reported
    [DT_DEVICE_FAILED]   = 7,     // NCCL: no rank was found dead, so the error is reported
    [DT_DEVICE_EXPIRED]  = 4,     // NCCL: no rank was found stalled, so the time-out is reported
    [DT_DEVICE_TURN]     = 1,     // NCCL: the lower rank, of the first four, has not reported
    // A rank that ends the job …
    [DT_AGREED]          = 2,     // with an error that all ranks have: rank 0 has reported it
    [DT_QUIET]           = 1,     // and reports it: rank 0 must have heard that, and logs no more
    [DT_UNCLAIMED]       = 5,     // and does not: the launcher of the rank that does has not ended this one
    [DT_ABORT]           = 2,     // by its communication thread, plus a beat a link: that thread hangs
    [DT_LAUNCHER]        = 3,     // by MPI_Abort: the launcher is gone, so the process ends by itself
    // An orderly end …
    [DT_FINALIZE]        = 60,    // MPI_Finalize has not returned
    [DT_DEVICE_FINALIZE] = 10,    // NCCL's peers have not finished: the communicator is aborted
};
// clang-format on
