// A thread that does one piece of work at a time while its owner continues, and keeps the error of
// work that failed. The file functions that the work calls report its progress (base/file.h), so
// that its owner knows slow work from work that hangs.
#pragma once

#include "base/error.h"

#include <stdbool.h>

struct dt_worker;

typedef dt_status dt_work(void *context);

dt_status dt_worker_start(struct dt_worker **worker);
// Waits for the work under way. NULL is fine.
void dt_worker_stop(struct dt_worker *worker);
// The worker must not be busy; the outcome of the work before is dropped.
void dt_worker_begin(struct dt_worker *worker, dt_work *work, void *context);
bool dt_worker_is_busy(struct dt_worker *worker);
// Waits for the work, `seconds` at most; returns whether it is done.
bool dt_worker_wait(struct dt_worker *worker, double seconds);
// Seconds since the work began or last reported progress; 0 where the worker is not busy.
double dt_worker_silence(struct dt_worker *worker);
// Whether the work that ended last failed, and its error was not taken.
bool dt_worker_has_failed(struct dt_worker *worker);
// Waits for the work. Its error becomes the calling thread's, once.
dt_status dt_worker_outcome(struct dt_worker *worker);
