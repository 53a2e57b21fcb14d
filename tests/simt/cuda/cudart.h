// Shared by the parts of the simulated CUDA runtime. All work becomes tasks, each after the tasks
// that it waits for; one thread, the device's, runs the tasks that are ready. A stream is its
// newest task, an event the task that it was recorded as. One lock guards everything; it is
// released only while a task runs and while a host thread waits.
#pragma once

#include "cuda_runtime_api.h"
#include "model.h"

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace simt
{
using guard = std::unique_lock<std::mutex>;

// ---- settings.cpp

struct settings {
    int devices, driver, sm;
    size_t memory;
    bool same_uuid;
    const char *name;
    bool code;        // false: the kernels were compiled for other architectures
    bool late_copies; // large ones to the host
};
// Of the environment, read once; sets the order of threads too.
const settings &environment(void);

// ---- error.cpp

std::mutex &lock(void);
// The error of a kernel that went wrong, which every call gives from then on; else cudaSuccess.
cudaError_t broken(void);
void break_device(cudaError_t error);
// Why no device can be used, or cudaSuccess.
cudaError_t usable(void);
cudaError_t remember(cudaError_t error); // for cudaGetLastError; returns it

// The frame of every call that asks about devices …
template <class F> cudaError_t ask(F body)
{
    guard hold(lock());
    cudaError_t error = usable();
    return remember(error == cudaSuccess ? body(hold) : error);
}

// … and of every one that uses the thread's device.
cudaError_t may_use_device(void);
template <class F> cudaError_t call(F body)
{
    return ask([&](guard &hold) {
        cudaError_t error = may_use_device();
        return error == cudaSuccess ? body(hold) : error;
    });
}

// ---- queue.cpp: the device's thread

// What is done, anew each time: by each launch of the graph that holds it.
struct work {
    std::string name;
    bool (*run)(void *context);            // again and again, until true
    std::vector<std::max_align_t> context; // each time starts from a copy
};
using work_ref = std::shared_ptr<const work>;
// The context is `head`, then from behind(head_bytes) on `tail`.
work_ref make_work(const char *name, bool (*run)(void *context), const void *head,
                   size_t head_bytes, const void *tail, size_t tail_bytes);
size_t behind(size_t head_bytes);
// Whether nothing was put or done for a while: all that could overtake a task has.
bool is_quiet(void);

struct task {
    work_ref what; // NULL: only a point that others wait for
    int stream;    // number of the stream that brought it, and its own: for the order
    uint64_t number;
    int before; // tasks that it waits for
    int priority;
    std::vector<std::shared_ptr<task>> followers;
    std::vector<std::max_align_t> context;
    bool begun, done;
};
using task_ref = std::shared_ptr<task>;

// Behind the tasks `after`, of which some may be NULL. NULL work is done as soon as those are. The
// priority changes no order, which is to be right without it; who asks is told (enqueue.h).
enum { GREATEST_PRIORITY = -5 }; // the least is 0
task_ref put(const work_ref &what, int stream, const std::vector<task_ref> &after,
             int priority = 0);
// Blocks until the task (which may be NULL) is done; gives what broke the device meanwhile.
cudaError_t wait_for(guard &hold, const task_ref &task);
cudaError_t wait_for_all(guard &hold);
bool is_done(const task_ref &task); // NULL is

// ---- stream.cpp

int current_device(void);
// That of the handle, NULL being the current device's own; NULL where there is none such.
CUstream_st *find_stream(cudaStream_t handle);
// Whether work may be put on the stream now (NULL: there is none such).
cudaError_t may_put(CUstream_st *stream);
cudaError_t append(CUstream_st *stream, const work_ref &what); // where it may

// ---- capture.cpp

struct node {
    work_ref what;
    int stream, priority;
    std::vector<size_t> after; // nodes before it
};

struct capture {
    CUstream_st *origin;
    std::thread::id thread;
    enum cudaStreamCaptureMode mode;
    bool valid, open;
    std::vector<node> nodes;
};
using capture_ref = std::shared_ptr<capture>;
using tips = std::vector<size_t>; // nodes that what comes next waits for

// Ends the hope of the capture, and gives `error`.
cudaError_t spoil(const capture_ref &capture, cudaError_t error);
// For calls that the calling thread may not make while it captures.
cudaError_t refuse_while_capturing(void);
// For calls that wait for all streams, while any is captured.
cudaError_t refuse_while_any_captures(void);
bool any_captured_blocks(void); // a captured stream that the NULL stream would wait for
void capture_work(CUstream_st *stream, const work_ref &what);
cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event);

// ---- memory.cpp

bool in_device_memory(const void *at, size_t bytes); // all of it, in one allocation
bool in_pinned_memory(const void *at, size_t bytes);
bool touches_device_memory(const void *at, size_t bytes);
} // namespace simt

struct CUstream_st {
    int device, number, priority;
    bool is_null, blocks; // a blocking one is known to the NULL stream
    simt::task_ref last;
    simt::capture_ref capture; // NULL: not being captured
    simt::tips tips;
};

struct CUevent_st {
    int device;
    simt::task_ref point;
    simt::capture_ref capture; // where it was last recorded in one
    simt::tips tips;
};
