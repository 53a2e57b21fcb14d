// The part of NVTX that dtrain uses. ranges.cpp counts the ranges.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif
int nvtxRangePushA(const char *message);
int nvtxRangePop(void);
#ifdef __cplusplus
}
#endif
