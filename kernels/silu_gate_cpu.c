// The gated activation on the CPU, a row at a time.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

// f(x) = x · factor(x)
DT_INLINE float factor(float x, bool relu2)
{
    return relu2 ? (x > 0.0f ? x : 0.0f) : dt_sigmoidf(x);
}

DT_INLINE void forward_row(const void *x, const void *u, void *y, int64_t n, bool relu2, bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = dt_load(x, i, bf16), f = v * factor(v, relu2);
        dt_store(y, i, u ? f * dt_load(u, i, bf16) : f, bf16);
    }
}

DT_CLONES static void forward(const struct dt_silu_gate_forward_args *a, int64_t row)
{
    const void *x = dt_view_at(&a->x, row, 0), *u = dt_view_at(&a->u, row, 0);
    void *y = dt_view_at(&a->y, row, 0);
    DT_STORAGE_SWITCH(a->x.dtype, bf16,
                      DT_BOOL_SWITCH(a->f == DT_RELU2, relu2,
                                     u ? forward_row(x, u, y, a->x.cols, relu2, bf16)
                                       : forward_row(x, NULL, y, a->x.cols, relu2, bf16)));
}

DT_OP_CPU(silu_gate_forward)
{
#pragma omp parallel for num_threads(device->threads)
    for (int64_t row = 0; row < args->x.rows; row++)
        forward(args, row);
    return DT_OK;
}

struct row {
    const void *x, *u, *dy;
    void *dx, *du;
};

DT_INLINE void backward_row(const struct row *r, int64_t n, bool gate, bool relu2, bool bf16)
{
    const void *px = r->x, *pu = r->u, *pdy = r->dy;
    void *pdx = r->dx, *pdu = r->du;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = dt_load(px, i, bf16), dy = dt_load(pdy, i, bf16), s = factor(x, relu2);
        float slope = relu2 ? 2.0f * s : s * (1.0f + x * (1.0f - s));
        if (gate) {
            float u = dt_load(pu, i, bf16);
            dt_store(pdu, i, dy * x * s, bf16);
            dt_store(pdx, i, dy * u * slope, bf16);
        } else {
            dt_store(pdx, i, dy * slope, bf16);
        }
    }
}

DT_CLONES static void backward(const struct dt_silu_gate_backward_args *a, int64_t row)
{
    const struct row r = {dt_view_at(&a->x, row, 0), dt_view_at(&a->u, row, 0),
                          dt_view_at(&a->dy, row, 0), dt_view_at(&a->dx, row, 0),
                          dt_view_at(&a->du, row, 0)};
    DT_STORAGE_SWITCH(a->x.dtype, bf16,
                      DT_BOOL_SWITCH(a->f == DT_RELU2, relu2,
                                     r.u ? backward_row(&r, a->x.cols, true, relu2, bf16)
                                         : backward_row(&r, a->x.cols, false, relu2, bf16)));
}

DT_OP_CPU(silu_gate_backward)
{
#pragma omp parallel for num_threads(device->threads)
    for (int64_t row = 0; row < args->x.rows; row++)
        backward(args, row);
    return DT_OK;
}
