// Signals that ask a run to stop: SIGUSR1, SIGHUP, SIGTERM and SIGINT set a flag that the loop
// reads once a step. Ranks see them at different steps, so they vote on the step to stop at.
// SIGUSR2 asks for the profile so far (train/profile.h), likewise by a flag.
#pragma once

#include "comm/comm.h"

// Called first in main: the signals wait from then on, in all threads that are created later and
// through execv too, until one of the next two is called.
void dt_signals_hold(void);
void dt_signals_release(void);      // they end the process again, those that wait at once
dt_status dt_signals_receive(void); // they are counted; a second SIGINT ends the process
// SIGTERM and SIGINT are also reported to dt_comm_terminated. NULL: no longer.
void dt_signals_set_comm(struct dt_comm *comm);
int dt_signals_pending(void);            // the last to stop that arrived, 0: none
bool dt_signals_report_wanted(void);     // since the last call
const char *dt_signals_name(int signal); // as the reason of a stop; 0: another rank's signal
