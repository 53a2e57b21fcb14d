// The table of CUDA ops, compiled for the host. simt_gemm.c replaces gemm.
#include "simt_backend.h"

#include "kernels/cuda.h"

#define SLOT(op)           .op = op##_cuda,
#define WORKSPACE_SLOT(op) .op = op##_cuda, .op##_workspace = op##_cuda_workspace,
const struct dt_op_table simt_op_table = {.name = "simt",
                                          .exp_unit = true,
                                          .scan_chunk = DT_SCAN_CHUNK_CUDA,
                                          .scan_keeps_s = true,
                                          .attention_mma = true,
                                          .ssd_chunk = DT_SSD_CHUNK_CUDA,
                                          DT_OPS_BY_WORKSPACE(WORKSPACE_SLOT, SLOT)};
