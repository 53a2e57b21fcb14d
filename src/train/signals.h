// Signals that ask a run to stop: SIGUSR1, SIGHUP, SIGTERM and SIGINT set a flag that the loop
// reads once a step. Ranks see them at different steps, so they vote on the step to stop at.
// SIGUSR2 requests the profile so far (train/profile.h), also by a flag.
#pragma once

#include "comm/comm.h"

// Call first in main. Blocks the signals, also in threads created later and across execv, until one
// of the next two functions is called.
void dt_signals_hold(void);
void dt_signals_release(void);      // they end the process again; pending ones do so at once
dt_status dt_signals_receive(void); // they are counted; a second SIGINT ends the process
// SIGTERM and SIGINT are also reported to dt_comm_terminated. NULL: no longer.
void dt_signals_set_comm(struct dt_comm *comm);
int dt_signals_pending(void);            // the last stop signal that arrived; 0: none
bool dt_signals_report_wanted(void);     // since the last call
const char *dt_signals_name(int signal); // the reason of a stop; 0: another rank's signal
