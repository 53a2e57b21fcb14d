// Signals that ask a run to stop: SIGUSR1, SIGTERM and SIGINT set a flag that the loop reads once a
// step; ranks see them at different steps, so the loop agrees on the step to stop at.
#pragma once

#include "comm/comm.h"

// `terminated` is told of SIGTERM and SIGINT (comm/job_control.h: dt_comm_terminated). A second SIGINT
// while the first is being served ends the process in the default way. To be called by the thread
// that trains, before it makes others that do.
dt_status dt_signals_install(struct dt_comm *comm);
// The signal that arrived, 0 for none.
int dt_signals_pending(void);
const char *dt_signals_name(int signal); // as the reason of a stop that the ranks agreed on
