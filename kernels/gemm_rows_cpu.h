// Products of few rows with a transposed B, as in a linear layer of inference. They are bound by
// reading B, so B is read once and never copied. Each element of C is one dot product, summed in an
// order that depends on k and the instruction set only. All int8 products are made here.
#pragma once

#include "kernels/gemm.h"
#include "kernels/isa_cpu.h"

bool dt_gemm_rows_suits(const struct dt_gemm_args *args);
int64_t dt_gemm_rows_workspace(const struct dt_gemm_args *args);
// Makes one product, as in gemm.h.
void dt_gemm_rows(enum dt_cpu_isa isa, int threads, const struct dt_gemm_args *args);
