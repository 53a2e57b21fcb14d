// Who waits how long as a job ends, in seconds. One table, for each time is chosen by the others:
// the rank that knows what happened reports it before those that only suffer from it, and a
// launcher that kills leaves enough time for that. Besides these there are comm.timeout_s and
// comm.start_timeout_s, which users set, and the silence after which a rank is dead
// (dt_watch_silence).
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
    [DT_PAUSED]          = 0.5,   // the last tick: this process did not run, and the clock advances by this at most
    [DT_HASTY_BEAT]      = 0.02,  // a beat, when SIGTERM came: the next one is sent
    [DT_CALMED]          = 0.7,   // SIGTERM: beats are slow again (mpirun kills a second after it)
    [DT_UNHEARD]         = 0.55,  // SIGTERM: a rank on another host without a beat since then is dead
    [DT_GONE]            = 0.2,   // a process of this host was gone: it is dead, and its last words have arrived
    [DT_RECORDED]        = 0.2,   // the news of the end has spread: the records are written, this rank may speak
    [DT_DEFERRED]        = 1.5,   // the end is certain: the rank that should speak has not, so any rank does
    [DT_WOKEN]           = 1,     // this process ran again: what it hears is news, and it may write its record
    [DT_OVERSLEPT]       = 2,     // the same after half a time-out: nobody has ended the job because of this rank
    [DT_SPOKEN]          = 2,     // the end is certain and another rank spoke: its launcher did not end this process
    // The guard (comm_mpi_guard.c), while the communication thread makes no round …
    [DT_HUNG]            = 0.2,   // after SIGTERM: it looks for a dead rank on this host
    [DT_LOST]            = 0.5,   // after SIGTERM: it blames a rank on another host
    [DT_TERMINATION]     = 1,     // after SIGTERM: it looks no more (mpirun kills then)
    [DT_STUCK]           = 5,     // after comm.timeout_s: it ends the process
    // A rank whose collective failed or timed out: the watch knows more about it …
    [DT_FAILED]          = 7,     // MPI: no rank was found dead, so the error is reported
    [DT_DEVICE_FAILED]   = 7,     // NCCL: the same
    [DT_DEVICE_EXPIRED]  = 4,     // NCCL: no rank was found stalled, so the time-out is reported
    [DT_DEVICE_TURN]     = 1,     // NCCL: the lower rank, of the first four, has not spoken
    // A rank that ends the job …
    [DT_AGREED]          = 2,     // with an error that all ranks have: rank 0 has reported it
    [DT_QUIET]           = 1,     // and speaks: rank 0 must have heard that, and logs no more
    [DT_UNCLAIMED]       = 5,     // and does not speak: the launcher of the rank that does has not ended this one
    [DT_ABORT]           = 2,     // by its communication thread, and a beat a link: that thread hangs
    [DT_LAUNCHER]        = 3,     // by MPI_Abort: the launcher is gone, so the process ends by itself
    // An orderly end …
    [DT_FINALIZE]        = 60,    // MPI_Finalize has not returned
    [DT_DEVICE_FINALIZE] = 10,    // NCCL's peers have not finished: the communicator is aborted
};
// clang-format on
