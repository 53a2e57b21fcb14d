// oneDNN's C API: what differs between 2.x (descriptors are structs, operations have descriptors of
// their own) and 3.x (descriptors are opaque) is kept in the first part of this file.
#include "kernels/onednn.h"

#include "base/memory.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

enum { A, B, C, SCRATCH, N_MEMORY };

struct dt_onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t memory_desc; // a pointer, owned

static const_dnnl_memory_desc_t desc_of(const memory_desc *desc)
{
    return *desc;
}

static dnnl_status_t desc_init(memory_desc *desc, const dnnl_dims_t dims, dnnl_data_type_t type,
                               const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(desc, 2, dims, type, strides);
}

static dnnl_status_t desc_copy(memory_desc *desc, const_dnnl_memory_desc_t from)
{
    return dnnl_memory_desc_clone(desc, from);
}

static void desc_drop(memory_desc *desc)
{
    if (*desc)
        dnnl_memory_desc_destroy(*desc);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                 const memory_desc desc[3], const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, desc[A], desc[B], NULL, desc[C], attr);
}

#else

typedef dnnl_memory_desc_t memory_desc; // a struct

static const dnnl_memory_desc_t *desc_of(const memory_desc *desc)
{
    return desc;
}

static dnnl_status_t desc_init(memory_desc *desc, const dnnl_dims_t dims, dnnl_data_type_t type,
                               const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides);
}

static dnnl_status_t desc_copy(memory_desc *desc, const dnnl_memory_desc_t *from)
{
    *desc = *from;
    return dnnl_success;
}

static void desc_drop(memory_desc *desc)
{
    (void)desc;
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                 const memory_desc desc[3], const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &desc[A], &desc[B], NULL, &desc[C]);
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(out, &matmul, attr, engine, NULL);
}

#endif

struct dt_matmul {
    const struct dt_onednn *onednn;
    dnnl_primitive_t primitive;
    memory_desc desc[N_MEMORY];
    int64_t scratch;
};

dt_status dt_onednn_open(struct dt_onednn **onednn)
{
    struct dt_onednn *o;
    DT_TRY(DT_NEW(&o, 1, "oneDNN's engine"));
    dnnl_status_t status = dnnl_engine_create(&o->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        dt_onednn_close(o);
        return DT_FAIL(DT_MACHINE, NULL, "oneDNN cannot open its CPU engine (status %d)",
                       (int)status);
    }
    *onednn = o;
    return DT_OK;
}

void dt_onednn_close(struct dt_onednn *onednn)
{
    if (!onednn)
        return;
    if (onednn->stream)
        dnnl_stream_destroy(onednn->stream);
    if (onednn->engine)
        dnnl_engine_destroy(onednn->engine);
    free(onednn);
}

static bool isa_has(dnnl_cpu_isa_t isa)
{
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

enum dt_cpu_isa dt_onednn_isa(void)
{
    return isa_has(dnnl_cpu_isa_avx512_core_bf16) ? DT_ISA_AVX512_BF16
           : isa_has(dnnl_cpu_isa_avx512_core)    ? DT_ISA_AVX512
           : isa_has(dnnl_cpu_isa_avx2)           ? DT_ISA_AVX2
                                                  : DT_ISA_PLAIN;
}

void dt_onednn_describe(char *text, size_t size)
{
    static const char *const name[] = {"plain x86-64", "avx2", "avx512", "avx512 bf16"};
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, size, "%s, oneDNN %d.%d.%d", name[dt_onednn_isa()], version->major,
             version->minor, version->patch);
}

// [rows, columns], or its transpose as stored; every size and the leading stride may be left to run
// time.
static dnnl_status_t operand(memory_desc *desc, int64_t rows, int64_t columns, int64_t ld,
                             bool trans, int32_t type, bool run_time)
{
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t strides = {trans ? 1 : ld, trans ? ld : 1};
    if (run_time) {
        dims[0] = dims[1] = DNNL_RUNTIME_DIM_VAL;
        strides[trans ? 1 : 0] = DNNL_RUNTIME_DIM_VAL;
    }
    return desc_init(desc, dims, type == DT_BF16 ? dnnl_bf16 : dnnl_f32, strides);
}

#define TRY(call)                                                                                  \
    if ((status = (call)) != dnnl_success)                                                         \
    goto out

static dnnl_status_t operands(memory_desc desc[3], const struct dt_matmul_shape *s, bool run_time)
{
    dnnl_status_t status;
    TRY(operand(&desc[A], s->m, s->k, s->lda, s->trans_a, s->a_type, run_time));
    TRY(operand(&desc[B], s->k, s->n, s->ldb, s->trans_b, s->b_type, run_time));
    TRY(operand(&desc[C], s->m, s->n, s->ldc, false, s->c_type, run_time));
out:
    return status;
}

static dnnl_status_t build(struct dt_matmul *matmul, const struct dt_matmul_shape *shape)
{
    memory_desc desc[3] = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_primitive_desc_t made = NULL;
    dnnl_status_t status;
    TRY(operands(matmul->desc, shape, false));
    TRY(operands(desc, shape, shape->run_time));
    TRY(dnnl_primitive_attr_create(&attr));
    TRY(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (shape->accumulate) {
        TRY(dnnl_post_ops_create(&ops));
        TRY(append_sum(ops));
        TRY(dnnl_primitive_attr_set_post_ops(attr, ops));
    }
    TRY(matmul_desc(&made, matmul->onednn->engine, desc, attr));
    TRY(desc_copy(&matmul->desc[SCRATCH],
                  dnnl_primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0)));
    matmul->scratch = (int64_t)dnnl_memory_desc_get_size(desc_of(&matmul->desc[SCRATCH]));
    TRY(dnnl_primitive_create(&matmul->primitive, made));
out:
    if (made)
        dnnl_primitive_desc_destroy(made);
    if (ops)
        dnnl_post_ops_destroy(ops);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 3; i++)
        desc_drop(&desc[i]);
    return status;
}

dt_status dt_matmul_create(struct dt_onednn *onednn, const struct dt_matmul_shape *shape,
                           struct dt_matmul **matmul)
{
    struct dt_matmul *m;
    DT_TRY(DT_NEW(&m, 1, "a oneDNN matmul"));
    m->onednn = onednn;
    // A primitive keeps for life the thread count that it was made under.
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    dnnl_status_t status = build(m, shape);
    omp_set_num_threads(threads);
    if (status != dnnl_success) {
        dt_matmul_destroy(m);
        return DT_FAIL(
            DT_MACHINE, NULL,
            "oneDNN supports no matmul of m %lld, n %lld, k %lld, types %s, %s, %s (status %d)",
            (long long)shape->m, (long long)shape->n, (long long)shape->k,
            dt_dtype_name((dt_dtype)shape->a_type), dt_dtype_name((dt_dtype)shape->b_type),
            dt_dtype_name((dt_dtype)shape->c_type), (int)status);
    }
    *matmul = m;
    return DT_OK;
}

void dt_matmul_destroy(struct dt_matmul *matmul)
{
    if (!matmul)
        return;
    if (matmul->primitive)
        dnnl_primitive_destroy(matmul->primitive);
    for (int i = 0; i < N_MEMORY; i++)
        desc_drop(&matmul->desc[i]);
    free(matmul);
}

int64_t dt_matmul_scratch(const struct dt_matmul *matmul)
{
    return matmul->scratch;
}

int dt_matmul_run(const struct dt_matmul *matmul, const void *a, const void *b, void *c,
                  void *scratch)
{
    static const int role[N_MEMORY] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                       DNNL_ARG_SCRATCHPAD};
    // oneDNN's handles have no const; it writes to the last two only.
    void *memory[N_MEMORY] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c, scratch};
    dnnl_exec_arg_t arg[N_MEMORY];
    dnnl_status_t status = dnnl_success;
    int n = 0;
    for (; n < N_MEMORY && status == dnnl_success; n++) {
        arg[n].arg = role[n];
        status = dnnl_memory_create(&arg[n].memory, desc_of(&matmul->desc[n]),
                                    matmul->onednn->engine, memory[n]);
    }
    if (status == dnnl_success)
        status = dnnl_primitive_execute(matmul->primitive, matmul->onednn->stream, n, arg);
    else
        n--;
    while (n > 0)
        dnnl_memory_destroy(arg[--n].memory);
    return (int)status;
}
