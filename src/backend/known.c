// The list of backends, in a separate file so that a program can link another list (tests/simt).
#include "backend/backend.h"

const struct dt_known_backend dt_known_backends[] = {
#ifdef DTRAIN_CUDA
    {&dt_cuda_device_table, &dt_cuda_op_table},
#endif
    {&dt_cpu_device_table, &dt_cpu_op_table},
    {0},
};
