// A thread that does one piece of work at a time while its owner continues, and keeps the error of
// failed work. File functions called by the work report progress (base/file.h), so that the owner
// can tell slow work from work that hangs.
#pragma once

#include "base/error.h"

#include <stdbool.h>

struct dt_worker;

typedef dt_status dt_work(void *context);

dt_status dt_worker_start(struct dt_worker **worker);
// Waits for the current work. NULL is fine.
void dt_worker_stop(struct dt_worker *worker);
// The worker must not be busy; the outcome of earlier work is dropped.
void dt_worker_begin(struct dt_worker *worker, dt_work *work, void *context);
bool dt_worker_is_busy(struct dt_worker *worker);
// Waits at most `seconds` for the work; returns whether it is done.
bool dt_worker_wait(struct dt_worker *worker, double seconds);
// Seconds since the work began or last reported progress; 0 if the worker is idle.
double dt_worker_silence(struct dt_worker *worker);
// Whether the last work failed and its error has not been taken yet.
bool dt_worker_has_failed(struct dt_worker *worker);
// Waits for the work and moves its error, once, to the calling thread.
dt_status dt_worker_outcome(struct dt_worker *worker);
