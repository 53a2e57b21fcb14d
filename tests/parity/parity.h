// One op on two backends in one process: its arguments stand in host memory between guard bands,
// the device gets a copy of every array with its bands, and what both wrote is compared. On the
// device it runs twice, and must give the same bits. A case is an args struct and a list of the
// fields that are pointers.
#pragma once

#include "op_fixture.h"

#include <stdbool.h>
#include <stddef.h>

enum parity_index {
#define PARITY_INDEX(op) PARITY_##op,
    DT_OPS(PARITY_INDEX)
#undef PARITY_INDEX
        PARITY_OPS
};

struct parity {
    struct dt_backend cpu, cuda;
    struct dt_stream *stream;
    char *algorithms; // of GEMM, as chosen so far
    char *workspace;  // device memory of workspace_bytes between bands
    int64_t workspace_bytes;
    bool done[PARITY_OPS];
};

// A model's training step of `batch` sequences, and a tile of its head.
struct parity_sizes {
    int64_t batch, length, d_model, inner, state, taps, dt_rank; // B, L, d, E, N, K, R
    int64_t vocab, tile;                                         // padded; rows of logits
    dt_dtype type;
    bool products; // gemm too
};

// The parts of the test, each over all ops of its kind; 0 if all agree.
int parity_flat(struct parity *p, const struct parity_sizes *s);
int parity_rows(struct parity *p, const struct parity_sizes *s);
int parity_conv(struct parity *p, const struct parity_sizes *s);
int parity_scan(struct parity *p, const struct parity_sizes *s);

enum parity_role { PARITY_END, PARITY_IN, PARITY_OUT, PARITY_WORKSPACE };
struct parity_field {
    enum parity_role role;
    const char *name;
    size_t at;       // of the pointer in the args
    size_t bytes_at; // workspace: of its size
    dt_dtype type;   // out: what to compare, [rows, width] at a stride, …
    int64_t rows, width, stride;
    double tolerance; // … of the 2-norm, relative
    int64_t skip;     // … from this byte on
};
#define FIELD_IN(op, field)                                                                        \
    {                                                                                              \
        .role = PARITY_IN, .name = #field, .at = offsetof(struct dt_##op##_args, field)            \
    }
#define FIELD_OUT(op, field, ...)                                                                  \
    {                                                                                              \
        PARITY_OUT, #field, offsetof(struct dt_##op##_args, field), 0, __VA_ARGS__                 \
    }
#define FIELD_WORKSPACE(op)                                                                        \
    {                                                                                              \
        .role = PARITY_WORKSPACE, .name = "workspace",                                             \
        .at = offsetof(struct dt_##op##_args, workspace),                                          \
        .bytes_at = offsetof(struct dt_##op##_args, workspace_bytes)                               \
    }
enum { PARITY_FIELDS = 32 };

struct parity_op {
    const char *name;
    size_t size; // of its args
    dt_status (*run)(const struct dt_backend *backend, const void *args, struct dt_stream *stream);
    int64_t (*workspace)(const struct dt_backend *backend, const void *args);
};

#define PARITY_OP(op)                                                                              \
    static inline dt_status parity_run_##op(const struct dt_backend *backend, const void *args,    \
                                            struct dt_stream *stream)                              \
    {                                                                                              \
        return dt_##op(backend, args, stream);                                                     \
    }                                                                                              \
    static inline int64_t parity_workspace_##op(const struct dt_backend *backend,                  \
                                                const void *args)                                  \
    {                                                                                              \
        return dt_##op##_workspace(backend, args);                                                 \
    }
DT_OPS(PARITY_OP)
#undef PARITY_OP

static inline struct parity_op parity_op_of(enum parity_index index)
{
#define PARITY_ROW(op)                                                                             \
    [PARITY_##op] = {#op, sizeof(struct dt_##op##_args), parity_run_##op, parity_workspace_##op},
    static const struct parity_op all[PARITY_OPS] = {DT_OPS(PARITY_ROW)};
#undef PARITY_ROW
    return all[index];
}

static inline void **pointer_at(void *args, size_t at)
{
    return (void **)(void *)((char *)args + at);
}

// ---- arrays of many elements: normal numbers times `scale`, drawn once and then taken again and
// again, a prime number of them so that no two rows are alike

enum { PARITY_DRAWN = 65537 };

static inline void *many_rows(dt_dtype type, int64_t rows, int64_t width, int64_t stride,
                              double scale, uint32_t seed)
{
    int64_t next = 0;
    float *drawn = normal(PARITY_DRAWN, scale, seed);
    void *x = guarded(rows * stride * dt_dtype_size(type));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            set(x, type, r * stride + i, (double)drawn[next]);
            next = next + 1 < PARITY_DRAWN ? next + 1 : 0;
        }
    RELEASE(drawn);
    return x;
}

static inline float *many(int64_t n, double scale, uint32_t seed)
{
    return many_rows(DT_F32, 1, n, n, scale, seed);
}

// ---- arrays on the device, bands and all

static inline void *upload(const struct parity *p, const void *host)
{
    const struct dt_device_table *table = p->cuda.table;
    int64_t bytes = guarded_size(host) + 2 * GUARD;
    void *memory = NULL;
    check_ok(table->alloc(p->cuda.device, bytes, &memory), "alloc");
    if (!memory)
        exit(1);
    check_ok(table->to_device(p->cuda.device, memory, (const char *)host - GUARD, bytes, p->stream),
             "to_device");
    check_ok(table->stream_sync(p->cuda.device, p->stream), "stream_sync");
    return (char *)memory + GUARD;
}

// A copy on the host of the array that was uploaded from `host`; the device's is freed.
static inline void *download(const struct parity *p, void *device, const void *host)
{
    const struct dt_device_table *table = p->cuda.table;
    int64_t size = guarded_size(host);
    char *copy = guarded(size), *memory = (char *)device - GUARD;
    check_ok(table->to_host(p->cuda.device, copy - GUARD, memory, size + 2 * GUARD, p->stream),
             "to_host");
    check_ok(table->stream_sync(p->cuda.device, p->stream), "stream_sync");
    memcpy(copy - GUARD, &size, sizeof size);
    table->free(p->cuda.device, memory);
    return copy;
}

// ---- comparing

static inline double parity_value(const void *x, dt_dtype type, int64_t i)
{
    switch (type) {
    case DT_F64:
        return ((const double *)x)[i];
    case DT_I32:
        return ((const int32_t *)x)[i];
    case DT_I64:
        return (double)((const int64_t *)x)[i];
    default:
        return get(x, type, i);
    }
}

// Relative, of 2-norms; and no element is off by more than 30 times that, of the elements' root
// mean square, once its rounding to storage is granted. A NaN on either side: NaN.
static inline double parity_distance(const struct parity_field *f, const void *got,
                                     const void *want)
{
    double error = 0.0, size = 0.0, worst = 0.0;
    got = (const char *)got + f->skip, want = (const char *)want + f->skip;
    for (int64_t r = 0; r < f->rows; r++)
        for (int64_t i = 0; i < f->width; i++) {
            double g = parity_value(got, f->type, r * f->stride + i);
            double w = parity_value(want, f->type, r * f->stride + i), d = fabs(g - w);
            error += d * d, size += w * w;
            worst = fmax(worst, d - (f->type == DT_BF16 ? 0x1.02p-8 * fabs(w) : 0.0));
            if (isnan(d))
                return (double)NAN;
        }
    double mean = sqrt(size / (double)(f->rows * f->width));
    return fmax(sqrt(error / (size + 1e-30)), worst / (mean + 1e-30) / 30.0);
}

static inline void compare_field(const struct parity_field *f, const char *op, const char *problem,
                                 const void *got, const void *again, const void *want)
{
    double distance = parity_distance(f, got, want);
    CHECK(distance <= f->tolerance, "%s, %s: %s is off by %.3g, more than %.3g", op, problem,
          f->name, distance, f->tolerance);
    CHECK(same_bits(got, again), "%s, %s: %s has other bits the second time", op, problem, f->name);
    CHECK(f->width == f->stride || gaps_fresh(got, f->type, f->rows, f->width, f->stride),
          "%s, %s: written between the rows of %s", op, problem, f->name);
}

// ---- running

// NULL where the op has none.
static inline const struct parity_field *find_workspace(const struct parity_field *fields)
{
    while (fields->role && fields->role != PARITY_WORKSPACE)
        fields++;
    return fields->role ? fields : NULL;
}

static inline void set_workspace(const struct parity_field *field, void *args, void *workspace,
                                 int64_t bytes)
{
    memcpy((char *)args + field->bytes_at, &bytes, sizeof bytes);
    *pointer_at(args, field->at) = workspace;
}

// The device's workspace is one memory for all: a band, what the op asks for, not yet written, and
// another band.
static inline void prepare_workspace(struct parity *p, int64_t bytes)
{
    const struct dt_device_table *table = p->cuda.table;
    struct dt_device *device = p->cuda.device;
    if (!p->workspace || bytes > p->workspace_bytes) { // an op may need none
        table->free(device, p->workspace);
        check_ok(table->alloc(device, bytes + 2 * GUARD, (void **)&p->workspace), "alloc");
        p->workspace_bytes = bytes;
    }
    check_ok(table->fill(device, p->workspace, GUARD_BYTE, GUARD, p->stream), "fill");
    check_ok(table->fill(device, p->workspace + GUARD, FRESH_BYTE, bytes, p->stream), "fill");
    check_ok(table->fill(device, p->workspace + GUARD + bytes, GUARD_BYTE, GUARD, p->stream),
             "fill");
}

static inline void check_workspace(const struct parity *p, const char *op, int64_t bytes)
{
    const struct dt_device_table *table = p->cuda.table;
    char bands[2 * GUARD];
    int wrong = 0;
    check_ok(table->to_host(p->cuda.device, bands, p->workspace, GUARD, p->stream), "to_host");
    check_ok(table->to_host(p->cuda.device, bands + GUARD, p->workspace + GUARD + bytes, GUARD,
                            p->stream),
             "to_host");
    check_ok(table->stream_sync(p->cuda.device, p->stream), "stream_sync");
    for (int i = 0; i < 2 * GUARD; i++)
        wrong += bands[i] != GUARD_BYTE;
    CHECK(wrong == 0, "%s wrote past the ends of its workspace", op);
}

static inline void check_after_run(const struct parity_op *op, const struct parity_field *field,
                                   const void *out, const void *host)
{
    CHECK(guards_whole(out), "%s wrote past the ends of %s", op->name, field->name);
    if (field->role == PARITY_IN)
        CHECK(same_bits(out, host), "%s wrote to %s", op->name, field->name);
}

static inline void run_on_device(struct parity *p, const struct parity_op *op,
                                 const struct parity_field *fields, const void *host_args,
                                 void *out[PARITY_FIELDS])
{
    char args[1024];
    const void *host[PARITY_FIELDS] = {0};
    const struct parity_field *workspace = find_workspace(fields);
    int64_t bytes = workspace ? op->workspace(&p->cuda, host_args) : 0;
    CHECK(op->size <= sizeof args, "%s has args of %zu bytes", op->name, op->size);
    memcpy(args, host_args, op->size);
    for (int i = 0; fields[i].role; i++) {
        host[i] = fields[i].role == PARITY_WORKSPACE ? NULL : *pointer_at(args, fields[i].at);
        if (host[i])
            *pointer_at(args, fields[i].at) = upload(p, host[i]);
    }
    if (workspace) {
        prepare_workspace(p, bytes);
        set_workspace(workspace, args, p->workspace + GUARD, bytes);
    }
    check_ok(op->run(&p->cuda, args, p->stream), op->name);
    if (workspace)
        check_workspace(p, op->name, bytes);
    for (int i = 0; fields[i].role; i++) {
        out[i] = host[i] ? download(p, *pointer_at(args, fields[i].at), host[i]) : NULL;
        if (out[i])
            check_after_run(op, &fields[i], out[i], host[i]);
    }
}

static inline void run_on_cpu(const struct parity *p, const struct parity_op *op,
                              const struct parity_field *fields, void *args)
{
    const struct parity_field *field = find_workspace(fields);
    int64_t bytes = field ? op->workspace(&p->cpu, args) : 0;
    void *workspace = guarded(bytes);
    if (field)
        set_workspace(field, args, workspace, bytes);
    check_ok(op->run(&p->cpu, args, NULL), op->name);
    release(workspace, "the workspace");
}

// args: host pointers between guard bands; what the op writes is the CPU's afterwards. Arrays that
// are read and written are OUT.
static inline void parity_compare(struct parity *p, enum parity_index index,
                                  const struct parity_field *fields, void *args,
                                  const char *problem)
{
    struct parity_op op = parity_op_of(index);
    void *got[PARITY_FIELDS], *again[PARITY_FIELDS];
    run_on_device(p, &op, fields, args, got);
    run_on_device(p, &op, fields, args, again);
    run_on_cpu(p, &op, fields, args);
    for (int i = 0; fields[i].role; i++) {
        if (fields[i].role == PARITY_OUT && got[i])
            compare_field(&fields[i], op.name, problem, got[i], again[i],
                          *pointer_at(args, fields[i].at));
        if (got[i]) {
            release(got[i], fields[i].name);
            release(again[i], fields[i].name);
        }
    }
    p->done[index] = true;
}
