// Shared by the files of this test of NCCL: the communicator, device and stream of its ranks,
// arrays on the host and the device, and calls that must succeed. Each test is called by all ranks.
#pragma once

#include "comm/comm_nccl.h"

#include "sums.h"

// Collectives of a step; the elements of the largest array, which NCCL cuts into several pieces.
enum { COLLECTIVES = 3, MOST = 200003 };

extern struct dt_comm *comm;
extern struct dt_backend backend;
extern struct dt_stream *stream;
extern struct dt_device_comm_config nccl_config; // of the communicator that was opened last

// An array on the host and its twin on the device.
struct buffers {
    void *host, *device;
};

// test_nccl.c
void need(dt_status status); // ends the job unless `status` is DT_OK
void allocate(struct buffers *buffers, int64_t bytes);
void release(const struct buffers *buffers);
void to_device(const struct buffers *buffers, int64_t bytes);
void to_host(const struct buffers *buffers, int64_t bytes); // and waits for the copy
struct dt_device_comm *open_nccl(void);
dt_status enqueue(struct dt_device_comm *nccl, int index, enum dt_operation operation, void *data,
                  int64_t count, enum dt_dtype type);

// test_nccl_sums.c
// Copies to the host the all-reduce of values whose sums round.
void sum_random(struct dt_device_comm *nccl, const struct buffers *buffers, dt_dtype type);
void test_sums(struct dt_device_comm *nccl, const struct buffers *buffers);
// test_nccl_messages.c
void test_messages(struct dt_device_comm *nccl, const struct buffers *buffers);
// test_nccl_trees.c
void test_trees(struct dt_device_comm *nccl, const struct buffers *buffers);
// test_nccl_environment.c
void test_environment(void);

// On the simulated device alone:
void *function(void *library, const char *name); // a function or variable of the stand-in
// test_nccl_buckets.c
void test_buckets(void);
// test_nccl_watchdog.c
void test_watchdog(void);
// test_nccl_stand_in.c
void test_abort(void);
void test_nvls(void);
void test_start(void);
