// Tests the worker thread: it works while its owner does other things, its errors reach the owner,
// and each file that it writes counts as progress.
#include "base/worker.h"

#include "base/clock.h"
#include "base/file.h"

#include "scratch.h"

#include <stdatomic.h>

struct job {
    atomic_bool go_on;
    int64_t plain;    // belongs to the worker while it is busy, else to its owner
    const char *path; // a file that it keeps writing; NULL: it makes no progress
};

static dt_status wait_for_owner(void *context)
{
    struct job *job = context;
    for (int i = 0; !atomic_load(&job->go_on); i++) {
        if (job->path)
            DT_TRY(dt_write_file_atomic(job->path, "text", 4));
        dt_sleep(0.01);
    }
    job->plain++;
    return DT_OK;
}

static dt_status fail(void *context)
{
    return DT_FAIL(DT_MACHINE, "a hint", "work %d failed", *(int *)context);
}

static void test_work(struct dt_worker *worker, bool writes)
{
    struct job job = {.path = writes ? in_scratch("file") : NULL};
    for (int i = 0; i < 3; i++) {
        atomic_store(&job.go_on, false);
        job.plain++;
        dt_worker_begin(worker, wait_for_owner, &job);
        CHECK(!dt_worker_wait(worker, 0.3), "it waits for its owner");
        CHECK(dt_worker_is_busy(worker) && !dt_worker_has_failed(worker), "busy");
        double silence = dt_worker_silence(worker);
        // A slow disk may need more time.
        for (int waits = 0; writes && silence >= 0.25 && waits < 100; waits++) {
            dt_sleep(0.05);
            silence = dt_worker_silence(worker);
        }
        CHECK(writes ? silence < 0.25 : silence > 0.25, "silent for %g s", silence);
        atomic_store(&job.go_on, true);
        CHECK_OK(dt_worker_outcome(worker));
        CHECK(!dt_worker_is_busy(worker), "not busy");
        CHECK(dt_worker_silence(worker) <= 0, "nothing is silent");
        CHECK_INT(job.plain, 2 * i + 2);
    }
}

static void test_failure(struct dt_worker *worker)
{
    int seven = 7;
    dt_worker_begin(worker, fail, &seven);
    CHECK(dt_worker_wait(worker, 60), "it ends");
    CHECK(dt_worker_has_failed(worker), "it has failed");
    CHECK_OK(dt_error_current()->code); // the error is returned only when it is asked for
    CHECK_FAILS(dt_worker_outcome(worker), DT_MACHINE, "work 7 failed");
    CHECK(!dt_worker_has_failed(worker), "the error was taken");
    CHECK_OK(dt_worker_outcome(worker));
    dt_error_clear();

    struct job job = {.go_on = true};
    dt_worker_begin(worker, fail, &seven);
    CHECK(dt_worker_wait(worker, 60), "it ends");
    dt_worker_begin(worker, wait_for_owner, &job); // drops the error that nobody asked for
    CHECK_INT(dt_worker_outcome(worker), DT_OK);
}

// The silence counts from the beginning of the work, however long the worker was idle before.
static void test_idle(struct dt_worker *worker)
{
    struct job job = {0};
    dt_sleep(0.1);
    double began = dt_seconds();
    dt_worker_begin(worker, wait_for_owner, &job);
    double silence = dt_worker_silence(worker), passed = dt_seconds() - began;
    CHECK(silence <= passed, "silent for %g s, %g s after it began", silence, passed);
    atomic_store(&job.go_on, true);
    CHECK_OK(dt_worker_outcome(worker));
}

static dt_status count(void *n)
{
    ++*(int *)n;
    return DT_OK;
}

// Work that was begun is completed before the thread ends, even if it had not started yet.
static void test_stop(void)
{
    int n = 0;
    for (int i = 0; i < 100; i++) {
        struct dt_worker *worker;
        CHECK_OK(dt_worker_start(&worker));
        dt_worker_begin(worker, count, &n);
        dt_worker_stop(worker);
    }
    CHECK_INT(n, 100);
}

int main(void)
{
    struct dt_worker *worker;
    int threads = thread_count();
    make_scratch();
    CHECK_OK(dt_worker_start(&worker));
    test_work(worker, false);
    test_work(worker, true);
    test_idle(worker);
    test_failure(worker);
    dt_worker_stop(worker);
    dt_worker_stop(NULL);
    test_stop();
    check_threads(threads);
    remove_scratch();
    return test_end();
}
