// Signals that ask a run to stop: SIGUSR1, SIGHUP, SIGTERM and SIGINT set a flag that the loop
// reads once a step. Ranks see them at different steps, so they vote on the step to stop at.
// SIGUSR2 asks for the profile so far (train/profile.h), likewise by a flag.
#pragma once

#include "comm/comm.h"

// SIGTERM and SIGINT are also reported to dt_comm_terminated. A second SIGINT ends the process.
// Called by the thread that trains, before it creates others.
dt_status dt_signals_install(struct dt_comm *comm);
int dt_signals_pending(void);            // the signal that arrived, 0: none
bool dt_signals_report_wanted(void);     // since the last call
const char *dt_signals_name(int signal); // as the reason of a stop; 0: another rank's signal
