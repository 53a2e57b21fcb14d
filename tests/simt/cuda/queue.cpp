// The device is one thread. It runs tasks whose predecessors are done, one at a time, in the order
// of SIMT_ORDER: `ascending` prefers the oldest stream and `descending` the newest; `random` and
// `warp` draw, `warp` with pauses. A GPU may be far behind the host. So in the first two orders the
// device waits until the host waits itself or has added nothing for a moment.
#include "cudart.h"
#include "enqueue.h"

#include <algorithm>
#include <chrono>
#include <stdio.h>
#include <stdlib.h>

namespace simt
{
using namespace std::chrono_literals;
using moment = std::chrono::steady_clock::time_point;

static const std::chrono::microseconds
    HOST_SILENT = 1ms, // the host then adds no more
    AT_MOST = 20ms,    // the longest wait while the host keeps adding work
    QUIET = 50ms,
    BETWEEN_TRIES = 50us; // of tasks that wait for something outside the device

// The device is never destroyed, since it may be working when the process ends.
struct device {
    std::condition_variable changed;
    std::vector<task_ref> ready;
    uint64_t numbered = 0;
    int pending = 0; // tasks not done
    int waiting = 0; // host threads that wait for a task
    bool stopping = false;
    moment newest_put, oldest_put; // oldest_put: since the device had nothing to do
    moment newest_done;
    std::thread thread;
};
static device &the = *new device;

static moment now(void)
{
    return std::chrono::steady_clock::now();
}

// ---- one task

static void finish(const task_ref &task)
{
    task->done = true;
    the.newest_done = now();
    the.pending--;
    the.ready.erase(std::remove(the.ready.begin(), the.ready.end(), task), the.ready.end());
    for (const task_ref &next : task->followers)
        if (--next->before == 0)
            the.ready.push_back(next);
    task->followers.clear();
    task->context.clear();
    the.changed.notify_all();
}

static int priority_now; // of the task that is running

// Tasks that are left on a broken device are never done, and nobody waits for them.
static bool tried(guard &hold, const task_ref &task)
{
    if (!task->what || broken() != cudaSuccess)
        return true;
    if (!task->begun)
        task->context = task->what->context;
    task->begun = true;
    priority_now = task->priority;
    hold.unlock();
    bool done = task->what->run(task->context.data());
    hold.lock();
    char text[1024];
    if (take_fault(text, sizeof text)) {
        fprintf(stderr, "simt: %s: %s\n", task->what->name.c_str(), text);
        break_device(cudaErrorLaunchFailure);
    }
    return done || broken() != cudaSuccess;
}

// ---- the choice of the next task

static bool older(const task_ref &a, const task_ref &b)
{
    return a->stream != b->stream ? a->stream < b->stream : a->number < b->number;
}

static std::vector<task_ref> in_order(std::vector<task_ref> tasks)
{
    std::sort(tasks.begin(), tasks.end(), older);
    if (order_now() == SIMT_DESCENDING)
        std::reverse(tasks.begin(), tasks.end());
    if (order_now() == SIMT_RANDOM || order_now() == SIMT_WARP_AHEAD)
        for (size_t i = tasks.size(); i > 1; i--)
            std::swap(tasks[i - 1], tasks[random_below((uint32_t)i)]);
    return tasks;
}

// Whether the device may begin; if not, waits a little.
static bool host_is_done(guard &hold)
{
    if (order_now() == SIMT_RANDOM || order_now() == SIMT_WARP_AHEAD || the.waiting > 0)
        return true;
    moment end = std::min(the.newest_put + HOST_SILENT, the.oldest_put + AT_MOST);
    if (now() >= end)
        return true;
    the.changed.wait_until(hold, end);
    return false;
}

// Runs tasks until one is done. Those that were tried before it come first in the order, but have
// to wait.
static void run_one(guard &hold)
{
    for (const task_ref &task : in_order(the.ready))
        if (tried(hold, task)) {
            finish(task);
            return;
        }
    the.changed.wait_for(hold, BETWEEN_TRIES);
}

static void run_device(void)
{
    guard hold(lock());
    while (!the.stopping) {
        if (the.ready.empty()) {
            the.changed.wait(hold);
        } else if (host_is_done(hold)) {
            if (order_now() == SIMT_WARP_AHEAD && random_below(4) == 0) {
                hold.unlock();
                std::this_thread::sleep_for(std::chrono::microseconds(random_below(300)));
                hold.lock();
            }
            run_one(hold);
        }
    }
}

// Called at the end of the process before the kernels' static variables are destroyed. Waits for
// the task that is running.
static void stop(void)
{
    if (std::this_thread::get_id() == the.thread.get_id())
        return;
    guard hold(lock());
    the.stopping = true;
    the.changed.notify_all();
    hold.unlock();
    the.thread.join();
}

// ---- the host's side

size_t behind(size_t head_bytes)
{
    const size_t unit = sizeof(std::max_align_t);
    return (head_bytes + unit - 1) / unit * unit;
}

work_ref make_work(const char *name, bool (*run)(void *), const void *head, size_t head_bytes,
                   const void *tail, size_t tail_bytes)
{
    auto made = std::make_shared<work>();
    made->name = name;
    made->run = run;
    made->context.resize((behind(head_bytes) + behind(tail_bytes)) / sizeof(std::max_align_t));
    char *context = reinterpret_cast<char *>(made->context.data());
    if (head_bytes > 0)
        memcpy(context, head, head_bytes);
    if (tail_bytes > 0)
        memcpy(context + behind(head_bytes), tail, tail_bytes);
    return made;
}

task_ref put(const work_ref &what, int stream, const std::vector<task_ref> &after, int priority)
{
    if (!the.thread.joinable()) {
        the.thread = std::thread(run_device);
        atexit(stop);
    }
    auto made = std::make_shared<task>();
    made->what = what;
    made->stream = stream;
    made->priority = priority;
    made->number = the.numbered++;
    for (const task_ref &one : after)
        if (!is_done(one)) {
            one->followers.push_back(made);
            made->before++;
        }
    the.newest_put = now();
    if (the.pending++ == 0)
        the.oldest_put = the.newest_put;
    if (made->before == 0)
        the.ready.push_back(made);
    the.changed.notify_all();
    return made;
}

template <class Done> static cudaError_t wait_until(guard &hold, Done done)
{
    the.waiting++;
    the.changed.notify_all();
    the.changed.wait(hold, done);
    the.waiting--;
    // The host may add more, as if there had been nothing to do before.
    the.oldest_put = the.newest_put = now();
    return broken();
}

cudaError_t wait_for(guard &hold, const task_ref &task)
{
    return wait_until(hold, [&] { return is_done(task); });
}

cudaError_t wait_for_all(guard &hold)
{
    return wait_until(hold, [] { return the.pending == 0; });
}

bool is_quiet(void)
{
    guard hold(lock());
    return now() > std::max(the.newest_put, the.newest_done) + QUIET;
}

bool is_done(const task_ref &task)
{
    return !task || task->done;
}
} // namespace simt

int simt_priority(void)
{
    return simt::priority_now;
}
