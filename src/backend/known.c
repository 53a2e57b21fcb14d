// The list of backends, in a file of its own: a program that links another list has other backends
// (tests/simt).
#include "backend/backend.h"

const struct dt_known_backend dt_known_backends[] = {
#ifdef DTRAIN_CUDA
    {&dt_cuda_device_table, &dt_cuda_op_table},
#endif
    {&dt_cpu_device_table, &dt_cpu_op_table},
    {0},
};
