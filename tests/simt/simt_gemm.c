// gemm for kernels that run on the host without the simulated CUDA runtime: plain loops in place of
// cuBLASLt, done at once. Programs with that runtime have the gemm of the CUDA backend, which the
// linker prefers.
#include "kernels/cuda.h"

#include "tests/typed.h"

static float element(const struct dt_view *x, int64_t row, int64_t col)
{
    return (float)get(x->data, x->dtype, row * x->stride + col);
}

static void multiply(const struct dt_gemm_args *g)
{
    for (int64_t i = 0; i < g->c.rows; i++)
        for (int64_t j = 0; j < g->c.cols; j++) {
            float sum = g->accumulate ? element(&g->c, i, j) : 0.0f;
            for (int64_t l = 0; l < dt_gemm_k(g); l++)
                sum += (g->trans_a ? element(&g->a, l, i) : element(&g->a, i, l)) *
                       (g->trans_b ? element(&g->b, j, l) : element(&g->b, l, j));
            set(g->c.data, g->c.dtype, i * g->c.stride + j, (double)sum);
        }
}

dt_status gemm_cuda(struct dt_device *device, const struct dt_gemm_args *args,
                    struct dt_stream *stream)
{
    (void)device, (void)stream;
    for (int64_t i = 0; i < dt_gemm_batch(args); i++) {
        struct dt_gemm_args one = dt_gemm_product(args, i);
        multiply(&one);
    }
    return DT_OK;
}

int64_t gemm_cuda_workspace(struct dt_device *device, const struct dt_gemm_args *args)
{
    (void)device, (void)args;
    return 0;
}
