// The device communicator of this build.
#include "comm/device_comm.h"

#ifdef DTRAIN_CUDA
const struct dt_device_comm_table *const dt_device_comm_known = &dt_nccl_table;
#else
const struct dt_device_comm_table *const dt_device_comm_known;
#endif
