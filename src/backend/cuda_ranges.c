// Named ranges for Nsight Systems, by NVTX, which costs nothing without a tool. NVTX is headers
// only, and some toolkits lack them; then these functions are no-ops.
#include "backend/cuda.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

void dt_cuda_range_begin(const char *name)
{
    nvtxRangePushA(name);
}

void dt_cuda_range_end(void)
{
    nvtxRangePop();
}
#else
void dt_cuda_range_begin(const char *name)
{
    (void)name;
}

void dt_cuda_range_end(void) {}
#endif
