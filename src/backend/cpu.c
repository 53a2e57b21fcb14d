// The two tables of the CPU backend. Memory is host memory, and every call is done when it returns,
// so streams and events are empty. Ops are in kernels/NAME_cpu.c.
#include "backend/backend.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/round.h"
#include "kernels/cpu.h"
#include "kernels/isa_cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_THREADS = 4096, HUGE_PAGE = 2 << 20 };

struct dt_stream {
    char token;
};

struct dt_event {
    char token;
};

// Header of every allocation, padded to DT_ARENA_ALIGN bytes.
struct block {
    int64_t bytes; // requested
};

static int cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); // more cores than fit into the set
    return online > 0 && online <= MAX_THREADS ? (int)online : 1;
}

// All ranks of a host share its CPU, so every index is valid.
static dt_status cpu_open(int index, int threads, struct dt_device **device)
{
    if (index < 0 || threads < 0 || threads > MAX_THREADS)
        return DT_FAIL(DT_USER, "use 0 threads for all cores that this process may use",
                       "CPU device %d with %d threads: must be 0 … %d", index, threads,
                       MAX_THREADS);
    struct dt_device *d;
    DT_TRY(dt_cpu_isa_open());
    DT_TRY(DT_NEW(&d, 1, "the CPU device"));
    d->threads = threads ? threads : cores();
    *device = d;
    return DT_OK;
}

static void cpu_close(struct dt_device *device)
{
    free(device);
}

static dt_status cpu_info(struct dt_device *device, struct dt_device_info *info)
{
    char model[96], available[64];
    *info = (struct dt_device_info){.threads = device->threads,
                                    .bf16 = dt_cpu_isa() >= DT_ISA_AVX512_BF16,
                                    .bf16_faster = dt_cpu_prefers_bf16()};
    dt_proc_value("/proc/cpuinfo", "model name", model, sizeof model);
    dt_proc_value("/proc/meminfo", "MemAvailable", available, sizeof available);
    snprintf(info->name, sizeof info->name, "%s, %d thread%s", model[0] ? model : "CPU",
             device->threads, device->threads == 1 ? "" : "s");
    info->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    info->memory_free = strtoll(available, NULL, 10) * 1024; // the file is in kB
    snprintf(info->features, sizeof info->features, "%s", dt_cpu_isa_name());
    return DT_OK;
}

static dt_status cpu_alloc(struct dt_device *device, int64_t bytes, void **memory)
{
    int64_t limit = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    void *base = NULL;
    if (bytes < 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot allocate %lld bytes", (long long)bytes);
    bool large = bytes >= HUGE_PAGE;
    if (bytes > limit || posix_memalign(&base, large ? HUGE_PAGE : DT_ARENA_ALIGN,
                                        (size_t)bytes + DT_ARENA_ALIGN) != 0)
        return DT_FAIL(
            DT_MACHINE,
            "lower data.micro_batch, set model.recompute = block, or use a smaller model",
            "out of memory: %.1f MiB requested, %.1f MiB in use, the machine has %.1f MiB",
            (double)bytes / 0x1p20, (double)device->memory_in_use / 0x1p20, (double)limit / 0x1p20);
    if (large) // fewer page faults and TLB misses; may fail
        madvise(base, (size_t)bytes + DT_ARENA_ALIGN, MADV_HUGEPAGE);
    // Threads zero their parts, so that pages are placed near the cores that will use them.
    int64_t whole = bytes + DT_ARENA_ALIGN;
#pragma omp parallel for num_threads(device->threads) if (whole > HUGE_PAGE)
    for (int64_t from = 0; from < whole; from += HUGE_PAGE)
        memset((char *)base + from, 0, (size_t)dt_min_i64(whole - from, HUGE_PAGE));
    ((struct block *)base)->bytes = bytes;
    __atomic_fetch_add(&device->memory_in_use, bytes, __ATOMIC_RELAXED);
    *memory = (char *)base + DT_ARENA_ALIGN;
    return DT_OK;
}

static void cpu_free(struct dt_device *device, void *memory)
{
    if (!memory)
        return;
    struct block *block = (struct block *)(void *)((char *)memory - DT_ARENA_ALIGN);
    __atomic_fetch_sub(&device->memory_in_use, block->bytes, __ATOMIC_RELAXED);
    free(block);
}

static int64_t cpu_memory_in_use(const struct dt_device *device)
{
    return __atomic_load_n(&device->memory_in_use, __ATOMIC_RELAXED);
}

static dt_status cpu_copy(struct dt_device *device, void *to, const void *from, int64_t bytes,
                          struct dt_stream *stream)
{
    (void)stream;
    if (bytes < 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot copy %lld bytes", (long long)bytes);
    if (bytes <= HUGE_PAGE) { // a parallel region costs more than a small copy
        if (bytes > 0)
            memcpy(to, from, (size_t)bytes);
        return DT_OK;
    }
#pragma omp parallel for num_threads(device->threads)
    for (int64_t at = 0; at < bytes; at += HUGE_PAGE)
        memcpy((char *)to + at, (const char *)from + at, (size_t)dt_min_i64(bytes - at, HUGE_PAGE));
    return DT_OK;
}

static dt_status cpu_fill(struct dt_device *device, void *to, int byte, int64_t bytes,
                          struct dt_stream *stream)
{
    (void)device, (void)stream;
    if (bytes < 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot fill %lld bytes", (long long)bytes);
    if (bytes > 0)
        memset(to, byte, (size_t)bytes);
    return DT_OK;
}

static dt_status cpu_stream_create(struct dt_device *device, bool urgent, struct dt_stream **stream)
{
    static struct dt_stream only;
    (void)device, (void)urgent;
    *stream = &only;
    return DT_OK;
}

static dt_status cpu_event_create(struct dt_device *device, struct dt_event **event)
{
    static struct dt_event only;
    (void)device;
    *event = &only;
    return DT_OK;
}

static dt_status cpu_event_done(struct dt_device *device, struct dt_event *event, bool *done)
{
    (void)device, (void)event;
    *done = true;
    return DT_OK;
}

const struct dt_device_table dt_cpu_device_table = {
    .name = "cpu",
    .unified = true,
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .alloc_host = cpu_alloc,
    .free_host = cpu_free,
    .memory_in_use = cpu_memory_in_use,
    .to_device = cpu_copy,
    .to_host = cpu_copy,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .stream_create = cpu_stream_create,
    .event_create = cpu_event_create,
    .event_done = cpu_event_done,
};

#define DT_OP_LITERAL(op)           .op = op##_cpu,
#define DT_OP_WORKSPACE_LITERAL(op) .op = op##_cpu, .op##_workspace = op##_cpu_workspace,
const struct dt_op_table dt_cpu_op_table = {
    .name = "cpu",
    .int8 = true,
    .scan_chunk = DT_SCAN_CHUNK_CPU,
    .ssd_chunk = DT_SSD_CHUNK_CPU,
    // Counted in kernels/scan_cpu.h. Exponentials are for softplus, its slope and the gate.
    .scan_cost = {.forward_lanes = 4,
                  .run_lanes = 4,
                  .sweep_lanes = 8,
                  .forward_exps = 2,
                  .run_exps = 1,
                  .gate_exps = 2},
    .logits_tile = DT_LOGITS_TILE_CPU,
    DT_OPS_BY_WORKSPACE(DT_OP_WORKSPACE_LITERAL, DT_OP_LITERAL)};
