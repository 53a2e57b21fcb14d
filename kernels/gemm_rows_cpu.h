// Products of few rows with a transposed B, as in a linear layer that plays a model: bound by
// reading B, which is read once and never copied. Each element of C is one dot product, summed in
// an order that depends on k and the instruction set alone: not on m, the threads, or other
// elements. All products of int8 go here.
#pragma once

#include "kernels/gemm.h"
#include "kernels/isa_cpu.h"

bool dt_gemm_rows_suits(const struct dt_gemm_args *args);
int64_t dt_gemm_rows_workspace(const struct dt_gemm_args *args);
// Makes one product, as in gemm.h.
void dt_gemm_rows(enum dt_cpu_isa isa, int threads, const struct dt_gemm_args *args);
