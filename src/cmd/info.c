// `dtrain info`: what this build and machine offer.
#include "cmd/cmd.h"

#include "backend/backend.h"
#include "base/cores.h"
#include "comm/comm.h"
#include "data/dataset.h"

#include <stdio.h>

dt_status dt_cmd_info(struct dt_comm *comm, int argc, char **argv)
{
    (void)comm, (void)argv;
    if (argc > 1)
        return DT_FAIL(DT_USER, "dtrain info", "dtrain info takes no arguments");
    bool widened;
    struct dt_backend backend;
    struct dt_device_info device;
    DT_TRY(dt_backend_open("cpu", 0, dt_cores_share(0, 1, &widened), &backend));
    dt_status status = backend.table->info(backend.device, &device);
    if (status == DT_OK) {
        printf("device      %s\n", device.name);
        printf("features    %s\n", device.features);
        printf("precision   %s\n",
               device.bf16 ? "bf16 in hardware (auto takes it)" : "fp32 (no bf16 instructions)");
        printf("memory      %.1f GiB, %.1f GiB free\n", (double)device.memory / 0x1p30,
               (double)device.memory_free / 0x1p30);
        printf("MPI         %s\n", dt_comm_mpi_version());
        printf("HDF5        %s\n", dt_dataset_hdf5_version());
        printf("CUDA, NCCL  not in this build\n");
    }
    dt_backend_close(&backend);
    return status;
}
