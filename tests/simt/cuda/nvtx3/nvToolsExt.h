// What the program uses of NVTX; ranges are counted (ranges.cpp).
#pragma once

#ifdef __cplusplus
extern "C" {
#endif
int nvtxRangePushA(const char *message);
int nvtxRangePop(void);
#ifdef __cplusplus
}
#endif
