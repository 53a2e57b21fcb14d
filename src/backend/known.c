// The list of backends, apart from what dispatches to them: a program that links another list has
// other backends.
#include "backend/backend.h"

const struct dt_known_backend dt_known_backends[] = {
#ifdef DTRAIN_CUDA
    {&dt_cuda_device_table, &dt_cuda_op_table},
#endif
    {&dt_cpu_device_table, &dt_cpu_op_table},
    {0},
};
