// Copies and fills.
#include "cudart.h"

namespace simt
{
enum { LARGE = 4096 }; // bytes

struct move {
    void *to;
    const void *from;
    size_t bytes;
};

struct fill {
    void *to;
    int byte;
    size_t bytes;
};

static bool do_move(void *context)
{
    const move *m = static_cast<const move *>(context);
    memmove(m->to, m->from, m->bytes);
    return true;
}

static bool do_move_late(void *context)
{
    return is_quiet() && do_move(context);
}

// The bytes follow the struct.
static bool do_staged(void *context)
{
    const move *m = static_cast<const move *>(context);
    memcpy(m->to, static_cast<const char *>(context) + behind(sizeof *m), m->bytes);
    return true;
}

static bool do_fill(void *context)
{
    const fill *f = static_cast<const fill *>(context);
    memset(f->to, f->byte, f->bytes);
    return true;
}

struct ends {
    bool to_device, from_device;
};

static bool direction(enum cudaMemcpyKind kind, const move &m, ends *out)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        *out = {false, false};
        return true;
    case cudaMemcpyHostToDevice:
        *out = {true, false};
        return true;
    case cudaMemcpyDeviceToHost:
        *out = {false, true};
        return true;
    case cudaMemcpyDeviceToDevice:
        *out = {true, true};
        return true;
    case cudaMemcpyDefault:
        *out = {in_device_memory(m.to, 1), in_device_memory(m.from, 1)};
        return true;
    }
    return false;
}

static bool end_fits(const void *at, size_t bytes, bool device)
{
    return device ? in_device_memory(at, bytes) : at && !touches_device_memory(at, bytes);
}

static cudaError_t copy(guard &hold, CUstream_st *stream, const move &m, ends e)
{
    bool stage = !e.from_device && !in_pinned_memory(m.from, m.bytes);
    bool settle = !e.to_device && !in_pinned_memory(m.to, m.bytes);
    bool late = environment().late_copies && !e.to_device && m.bytes >= LARGE && !stream->capture;
    if (stream->capture && (stage || settle))
        return spoil(stream->capture, cudaErrorStreamCaptureUnsupported);
    work_ref what = stage
                        ? make_work("a copy", do_staged, &m, sizeof m, m.from, m.bytes)
                        : make_work("a copy", late ? do_move_late : do_move, &m, sizeof m, NULL, 0);
    cudaError_t error = append(stream, what);
    return error || !settle ? error : wait_for(hold, task_ref(stream->last));
}
} // namespace simt

using namespace simt;

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t handle)
{
    return call([&](guard &hold) {
        CUstream_st *stream = find_stream(handle);
        move m = {to, from, bytes};
        ends e;
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (!direction(kind, m, &e))
            return cudaErrorInvalidMemcpyDirection;
        if (bytes == 0)
            return cudaSuccess;
        if (!end_fits(to, bytes, e.to_device) || !end_fits(from, bytes, e.from_device))
            return cudaErrorInvalidValue;
        return copy(hold, stream, m, e);
    });
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t handle)
{
    return call([&](guard &) {
        CUstream_st *stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (bytes == 0)
            return cudaSuccess;
        if (!in_device_memory(to, bytes))
            return cudaErrorInvalidValue;
        fill f = {to, value, bytes};
        return append(stream, make_work("a fill", do_fill, &f, sizeof f, NULL, 0));
    });
}
