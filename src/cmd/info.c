// `dtrain info`: prints what this build and machine offer: devices, versions, features.
#include "cmd/cmd.h"

#include "backend/backend.h"
#include "base/cores.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/device_comm.h"
#include "data/dataset.h"

#include <stdio.h>

enum { COLUMN = 12 }; // column where a line's text begins

__attribute__((format(printf, 1, 2))) static void print_line(const char *format, ...)
{
    char text[DT_ERROR_MESSAGE + 128];
    DT_PRINT_ARGUMENTS(text, sizeof text, format);
    dt_print_wrapped(stdout, 0, COLUMN, text);
}

static dt_status describe(const struct dt_known_backend *known, int index, int threads)
{
    struct dt_device_info info;
    struct dt_backend backend;
    DT_TRY(dt_backend_open(known->table->name, index, threads, &backend));
    dt_status status = backend.table->info(backend.device, &info);
    dt_backend_close(&backend);
    if (status != DT_OK)
        return status;
    print_line("device      %s %d: %s (%s)", known->table->name, index, info.name, info.features);
    if (info.id[0])
        print_line("  id        %s", info.id);
    printf("  precision auto uses %s (%s)\n", info.bf16_faster ? "bf16" : "fp32",
           info.bf16 ? "bf16 in hardware" : "no bf16 instructions");
    printf("  memory    %.1f GiB, %.1f GiB free\n", (double)info.memory / 0x1p30,
           (double)info.memory_free / 0x1p30);
    if (info.peak_flops > 0)
        printf("  peak      %.0f TFLOP/s dense bf16 (data sheet)\n", info.peak_flops * 1e-12);
    return DT_OK;
}

// Prints the current error as the line of a missing component, and clears the error.
static void print_absent(const char *what)
{
    print_line("%s: %s", what, dt_error_current()->message);
    if (dt_error_current()->hint[0])
        print_line("  hint      %s", dt_error_current()->hint);
    dt_error_clear();
}

static void print_backend(const struct dt_known_backend *known, int threads)
{
    char what[64], versions[1024];
    int n = 1;
    snprintf(what, sizeof what, "device      %s", known->table->name);
    if (known->table->count && known->table->count(&n) != DT_OK) {
        print_absent(what);
        n = 0;
    }
    for (int i = 0; i < n; i++) {
        snprintf(what, sizeof what, "device      %s %d cannot be opened", known->table->name, i);
        if (describe(known, i, threads) != DT_OK)
            print_absent(what);
    }
    if (known->table->versions) {
        known->table->versions(versions, sizeof versions);
        fputs(versions, stdout);
    }
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    (void)comm, (void)call;
    char version[64];
    bool widened;
    int threads = dt_cores_share(0, 1, &widened);
    for (const struct dt_known_backend *known = dt_known_backends; known->table; known++)
        print_backend(known, threads);
    if (!dt_device_comm_known)
        print_line("CUDA, NCCL  not in this build (configure with -DDTRAIN_CUDA=ON)");
    else if (dt_device_comm_known->version(version, sizeof version) == DT_OK)
        printf("NCCL        %s\n", version);
    else
        print_absent("NCCL        not found");
    print_line("MPI         %s", dt_comm_mpi_version());
    printf("HDF5        %s\n", dt_dataset_hdf5_version());
    return DT_OK;
}

const struct dt_command dt_cmd_info = {
    .name = "info", .usage = "", .help = "print devices, versions and features", .run = run};
