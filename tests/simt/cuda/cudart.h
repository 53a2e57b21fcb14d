// Shared by the parts of the simulated CUDA runtime. All work becomes tasks, each of which waits
// for other tasks. One thread, the device's, runs the tasks that are ready. A stream is its newest
// task, and an event is the task that it was recorded as. One lock guards everything; it is
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
    bool late_copies; // large copies to the host are late
};
// Reads the environment once, and also sets the order of threads.
const settings &environment(void);

// ---- error.cpp

std::mutex &lock(void);
// The error of a kernel that failed, which every later call returns; else cudaSuccess.
cudaError_t broken(void);
void break_device(cudaError_t error);
// Why no device can be used; else cudaSuccess.
cudaError_t usable(void);
cudaError_t remember(cudaError_t error); // keeps it for cudaGetLastError, and returns it

// Wraps every call that asks about devices.
template <class F> cudaError_t ask(F body)
{
    guard hold(lock());
    cudaError_t error = usable();
    return remember(error == cudaSuccess ? body(hold) : error);
}

// Wraps every call that uses the thread's device.
cudaError_t may_use_device(void);
template <class F> cudaError_t call(F body)
{
    return ask([&](guard &hold) {
        cudaError_t error = may_use_device();
        return error == cudaSuccess ? body(hold) : error;
    });
}

// ---- queue.cpp: the device's thread

// The work of a task. Each launch of a graph repeats it.
struct work {
    std::string name;
    bool (*run)(void *context);            // is called until it returns true
    std::vector<std::max_align_t> context; // each repetition starts from a copy of it
};
using work_ref = std::shared_ptr<const work>;
// The context is `head` and, from offset behind(head_bytes) on, `tail`.
work_ref make_work(const char *name, bool (*run)(void *context), const void *head,
                   size_t head_bytes, const void *tail, size_t tail_bytes);
size_t behind(size_t head_bytes);
// Whether no task was added or done for a while, so that all tasks that could overtake one have.
bool is_quiet(void);

struct task {
    work_ref what; // NULL: a point that others wait for
    int stream;    // `stream` added it as its task `number`; these decide the order
    uint64_t number;
    int before; // tasks that it waits for
    int priority;
    std::vector<std::shared_ptr<task>> followers;
    std::vector<std::max_align_t> context;
    bool begun, done;
};
using task_ref = std::shared_ptr<task>;

// Adds a task that waits for the tasks `after`, some of which may be NULL. NULL work is done as
// soon as these are. The priority does not change the order, which must be right without it, but
// can be asked for (enqueue.h).
enum { GREATEST_PRIORITY = -5 }; // the least is 0
task_ref put(const work_ref &what, int stream, const std::vector<task_ref> &after,
             int priority = 0);
// Waits until the task (or NULL) is done. Returns the error that broke the device meanwhile.
cudaError_t wait_for(guard &hold, const task_ref &task);
cudaError_t wait_for_all(guard &hold);
bool is_done(const task_ref &task); // NULL is done

// ---- stream.cpp

int current_device(void);
// The stream of a handle; NULL is the default stream of the current device. Returns NULL for a
// wrong handle.
CUstream_st *find_stream(cudaStream_t handle);
// Whether work may be added to the stream now (NULL: a wrong handle).
cudaError_t may_put(CUstream_st *stream);
cudaError_t append(CUstream_st *stream, const work_ref &what); // if it may

// ---- capture.cpp

struct node {
    work_ref what;
    int stream, priority;
    std::vector<size_t> after; // nodes that it waits for
};

struct capture {
    CUstream_st *origin;
    std::thread::id thread;
    enum cudaStreamCaptureMode mode;
    bool valid, open;
    std::vector<node> nodes;
};
using capture_ref = std::shared_ptr<capture>;
using tips = std::vector<size_t>; // nodes that the next node waits for

// Makes the capture invalid and returns `error`.
cudaError_t spoil(const capture_ref &capture, cudaError_t error);
// Fails if the calling thread captures. For calls that are then forbidden.
cudaError_t refuse_while_capturing(void);
// Fails if any stream is captured. For calls that wait for all streams.
cudaError_t refuse_while_any_captures(void);
bool any_captured_blocks(void); // whether the NULL stream would wait for a captured one
void capture_work(CUstream_st *stream, const work_ref &what);
cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event);

// ---- memory.cpp

bool in_device_memory(const void *at, size_t bytes); // whether all of it is in one allocation
bool in_pinned_memory(const void *at, size_t bytes);
bool touches_device_memory(const void *at, size_t bytes);
} // namespace simt

struct CUstream_st {
    int device, number, priority;
    bool is_null, blocks; // blocks: it and the NULL stream wait for each other
    simt::task_ref last;
    simt::capture_ref capture; // NULL: it is not captured
    simt::tips tips;
};

struct CUevent_st {
    int device;
    simt::task_ref point;
    simt::capture_ref capture; // the capture in which it was recorded last
    simt::tips tips;
};
