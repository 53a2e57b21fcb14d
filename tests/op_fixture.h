// Shared by tests of ops: a backend; arrays between guard bands, which are NaN until written;
// values from a seed; and running an op on a workspace of exactly the size that it requests.
#pragma once

#include "test.h"
#include "typed.h"

#include "backend/backend.h"
#include "base/rng.h"

// Bytes 0xff are a NaN in fp32 and in bf16. They fill arrays that an op has not yet written, and
// the guards around all arrays, so what an op reads beyond an array shows in its results.
enum { GUARD = 256, FRESH_BYTE = 0xff };

static inline void check_ok(dt_status status, const char *what)
{
    char text[2048] = "";
    if (status != DT_OK)
        dt_error_format(dt_error_current(), 1, text, sizeof text);
    CHECK(status == DT_OK, "%s: %s", what, text);
    dt_error_clear();
}

static inline struct dt_backend open_backend(const char *name, int threads)
{
    struct dt_backend backend = {0};
    check_ok(dt_backend_open(name, 0, threads, &backend), "dt_backend_open");
    if (!backend.device)
        exit(1);
    return backend;
}

static inline struct dt_backend open_cpu(int threads)
{
    return open_backend("cpu", threads);
}

// Arrays that were not released yet, in all files of the program.
enum { GUARDED_MOST = 1024 };
__attribute__((weak)) char *guarded_all[GUARDED_MOST];
__attribute__((weak)) int guarded_count;

// Allocates an array between guard bands, the first of which starts with the array's size.
static inline void *guarded(int64_t bytes)
{
    char *base =
        bytes < 0 || guarded_count == GUARDED_MOST ? NULL : malloc((size_t)bytes + 2 * GUARD);
    if (!base)
        exit(1);
    memset(base, FRESH_BYTE, (size_t)bytes + 2 * GUARD);
    memcpy(base, &bytes, sizeof bytes);
    guarded_all[guarded_count++] = base + GUARD;
    return base + GUARD;
}

static inline void *guarded_copy(const void *from, int64_t bytes)
{
    return memcpy(guarded(bytes), from, (size_t)bytes);
}

static inline int64_t guarded_size(const void *data)
{
    int64_t bytes;
    memcpy(&bytes, (const char *)data - GUARD, sizeof bytes);
    return bytes;
}

// Returns the start of the array that `at` points into.
static inline char *guarded_around(const void *at)
{
    for (int i = 0; i < guarded_count; i++)
        if ((const char *)at >= guarded_all[i] &&
            (const char *)at <= guarded_all[i] + guarded_size(guarded_all[i]))
            return guarded_all[i];
    fprintf(stderr, "%p is in no guarded array\n", at);
    exit(1);
}

static inline int guards_whole(const void *data)
{
    const uint8_t *low = (const uint8_t *)data - GUARD,
                  *high = (const uint8_t *)data + guarded_size(data);
    for (int i = 0; i < GUARD; i++)
        if ((i >= 8 && low[i] != FRESH_BYTE) || high[i] != FRESH_BYTE)
            return 0;
    return 1;
}

// Checks the guard bands of an array, then frees it.
static inline void release(void *data, const char *name)
{
    int i = 0;
    CHECK(guards_whole(data), "the op wrote past the ends of %s", name);
    while (guarded_all[i] != data)
        i++;
    guarded_all[i] = guarded_all[--guarded_count];
    free((char *)data - GUARD);
}
#define RELEASE(data) release(data, #data)

static inline void release_all(void)
{
    while (guarded_count > 0)
        release(guarded_all[guarded_count - 1], "an array");
}

// An array [rows, width] at a stride: normal numbers times `scale`. Gaps between the rows stay
// fresh. A prime number of values is drawn once and reused, so that no two rows are alike.
enum { DRAWN = 65537 };

static inline void *normal_rows(dt_dtype type, int64_t rows, int64_t width, int64_t stride,
                                double scale, uint32_t seed)
{
    static double drawn[DRAWN];
    struct dt_philox rng = dt_philox_init(seed, 7, 0);
    void *x = guarded(rows * stride * dt_dtype_size(type));
    for (int64_t i = 0; i < DRAWN && i < rows * width; i++)
        drawn[i] = scale * (double)dt_philox_normal(&rng);
    for (int64_t r = 0, next = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            set(x, type, r * stride + i, drawn[next]);
            next = next + 1 < DRAWN ? next + 1 : 0;
        }
    return x;
}

static inline float *normal(int64_t n, double scale, uint32_t seed)
{
    return normal_rows(DT_F32, 1, n, n, scale, seed);
}

// Views of guarded arrays: one of normal numbers, and a fresh one.
static inline struct dt_view normal_view(dt_dtype type, int64_t rows, int64_t cols, int64_t stride,
                                         double scale, uint32_t seed)
{
    struct dt_view view =
        dt_view_of(normal_rows(type, rows, cols, stride, scale, seed), rows, cols, type);
    view.stride = stride;
    return view;
}

static inline struct dt_view fresh_view(dt_dtype type, int64_t rows, int64_t cols, int64_t stride)
{
    struct dt_view view =
        dt_view_of(guarded(rows * stride * dt_dtype_size(type)), rows, cols, type);
    view.stride = stride;
    return view;
}

static inline double get_at(const struct dt_view *view, int64_t row, int64_t col)
{
    return get(view->data, view->dtype, row * view->stride + col);
}

static inline void set_at(const struct dt_view *view, int64_t row, int64_t col, double value)
{
    set(view->data, view->dtype, row * view->stride + col, value);
}

// Half the relative spacing of a storage type: the error of rounding a result.
static inline double rounding(dt_dtype type)
{
    return type == DT_BF16 ? 0x1p-8 : 0x1p-24;
}

static inline int same_bits(const void *a, const void *b)
{
    return guarded_size(a) == guarded_size(b) && memcmp(a, b, (size_t)guarded_size(a)) == 0;
}

// Runs an op on exactly the workspace that it requests.
#define RUN_WITH_WORKSPACE(op, backend, args)                                                      \
    do {                                                                                           \
        (args)->workspace_bytes = dt_##op##_workspace(backend, args);                              \
        void *workspace = guarded((args)->workspace_bytes);                                        \
        (args)->workspace = workspace;                                                             \
        check_ok(dt_##op(backend, args, NULL), #op);                                               \
        RELEASE(workspace);                                                                        \
    } while (0)
