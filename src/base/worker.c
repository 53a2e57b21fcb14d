// One thread and one slot for work, under a lock. The owner waits on `changed` for the outcome, the
// thread waits on it for work.
#include "base/worker.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct dt_worker {
    pthread_t thread;
    _Atomic double heard; // dt_seconds of its last progress
    // Guarded by the lock:
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, stop;
    dt_work *work;
    void *context;
    struct dt_error error; // code DT_OK: none
};

static void hear(void *worker)
{
    atomic_store(&((struct dt_worker *)worker)->heard, dt_seconds());
}

static void *serve(void *worker)
{
    struct dt_worker *w = worker;
    dt_file_on_progress_here(hear, w);
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (!w->busy) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        dt_status status = w->work(w->context);
        pthread_mutex_lock(&w->lock);
        if (status != DT_OK)
            dt_error_take(&w->error);
        w->busy = false;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

dt_status dt_worker_start(struct dt_worker **worker)
{
    struct dt_worker *w;
    *worker = NULL;
    DT_TRY(DT_NEW(&w, 1, "a thread"));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    int code = pthread_create(&w->thread, NULL, serve, w);
    if (code != 0) {
        free(w);
        return DT_FAIL(DT_MACHINE, NULL, "pthread_create failed: %s", strerror(code));
    }
    *worker = w;
    return DT_OK;
}

void dt_worker_stop(struct dt_worker *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    while (w->busy)
        pthread_cond_wait(&w->changed, &w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void dt_worker_begin(struct dt_worker *w, dt_work *work, void *context)
{
    pthread_mutex_lock(&w->lock);
    w->work = work;
    w->context = context;
    w->error.code = DT_OK;
    w->busy = true;
    hear(w);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

bool dt_worker_is_busy(struct dt_worker *w)
{
    return !dt_worker_wait(w, 0);
}

bool dt_worker_wait(struct dt_worker *w, double seconds)
{
    struct timespec until = dt_time_in(seconds);
    int code = 0;
    pthread_mutex_lock(&w->lock);
    while (w->busy && seconds > 0 && code == 0)
        code = pthread_cond_clockwait(&w->changed, &w->lock, CLOCK_MONOTONIC, &until);
    bool done = !w->busy;
    pthread_mutex_unlock(&w->lock);
    return done;
}

double dt_worker_silence(struct dt_worker *w)
{
    return dt_worker_is_busy(w) ? dt_seconds() - atomic_load(&w->heard) : 0;
}

bool dt_worker_has_failed(struct dt_worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool failed = !w->busy && w->error.code != DT_OK;
    pthread_mutex_unlock(&w->lock);
    return failed;
}

dt_status dt_worker_outcome(struct dt_worker *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->busy)
        pthread_cond_wait(&w->changed, &w->lock);
    dt_status status = w->error.code;
    if (status != DT_OK)
        dt_error_restore(&w->error);
    w->error.code = DT_OK;
    pthread_mutex_unlock(&w->lock);
    return status;
}
