// Finds, opens and describes CUDA devices, and explains why there is none.
#include "backend/cuda.h"

#include "base/cores.h"
#include "base/memory.h"
#include "base/text.h"
#include "kernels/cuda.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OR_CPU "; run.device = cpu needs none"

// Dense bf16 tensor FLOP/s with fp32 sums, from the vendor's data sheets. Matched
// after "NVIDIA " and "GeForce ", by whole words.
static const struct {
    const char *name;
    double tera;
} peaks[] = {
    {"GB200", 2500},      {"B300", 2250},
    {"B200", 2250},       {"B100", 1750},
    {"GH200", 989.4},     {"H200 NVL", 835.5},
    {"H200", 989.4},      {"H100 PCIe", 756.5},
    {"H100 NVL", 835.5},  {"H100", 989.4},
    {"H800 PCIe", 756.5}, {"H800", 989.4},
    {"H20", 148},         {"A100", 312},
    {"A800", 312},        {"A40", 149.7},
    {"A30", 165},         {"A10", 125},
    {"L40S", 362},        {"L40", 181},
    {"L4", 121},          {"RTX 5090", 209.5},
    {"RTX 4090 D", 147},  {"RTX 4090", 165.2},
    {"RTX 3090", 71.2},   {"RTX 6000 Ada", 364.2},
};

// ---- why there is no GPU

// The driver reports CUDA 12.4 as 12040.
struct version {
    int major, minor;
};

static struct version version_of(int number)
{
    return (struct version){number / 1000, number % 1000 / 10};
}

static dt_status old_driver(int driver)
{
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    struct version has = version_of(driver), needs = version_of(runtime);
    return DT_FAIL(
        DT_USER,
        "install a newer driver, or build dtrain with the toolkit of that CUDA version" OR_CPU,
        "no GPU can be used: the NVIDIA driver supports CUDA up to %d.%d, this program was built "
        "with CUDA %d.%d",
        has.major, has.minor, needs.major, needs.minor);
}

static dt_status no_device(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible)
        return DT_FAIL(DT_USER, "unset it, or name devices as nvidia-smi -L lists them" OR_CPU,
                       "no GPU: CUDA_VISIBLE_DEVICES = \"%s\" leaves none", visible);
    return DT_FAIL(DT_USER,
                   "nvidia-smi lists what the driver sees; under Slurm ask for GPUs "
                   "(--gres=gpu:1)" OR_CPU,
                   "no GPU: the NVIDIA driver sees none");
}

static dt_status explain_none(cudaError_t error)
{
    int driver = 0;
    cudaGetLastError();
    if (error == cudaSuccess || error == cudaErrorNoDevice)
        return no_device();
    cudaDriverGetVersion(&driver);
    if (driver == 0)
        return DT_FAIL(DT_USER,
                       "install NVIDIA's driver; start a container with access to the GPUs (docker "
                       "--gpus all, apptainer --nv)" OR_CPU,
                       "no GPU: no NVIDIA driver found");
    if (error == cudaErrorInsufficientDriver)
        return old_driver(driver);
    return DT_FAIL(
        DT_USER,
        "nvidia-smi shows the state of the driver; machines with NVSwitch need a running "
        "nvidia-fabricmanager" OR_CPU,
        "no GPU can be used: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
}

dt_status dt_cuda_count(int *n)
{
    cudaError_t error = cudaGetDeviceCount(n);
    if (error == cudaSuccess && *n > 0)
        return DT_OK;
    *n = 0;
    return explain_none(error);
}

// ---- versions

// "580.65.06": the first word in the kernel module's version file that begins with a digit, or "".
static void driver_release(char *text, size_t size)
{
    char line[256] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    text[0] = '\0';
    if (!file)
        return;
    if (fgets(line, sizeof line, file))
        for (char *save, *word = strtok_r(line, " \t\n", &save); word && !text[0];
             word = strtok_r(NULL, " \t\n", &save))
            if (isdigit((unsigned char)word[0]))
                snprintf(text, size, "%s", word);
    fclose(file);
}

void dt_cuda_versions(char *text, size_t size)
{
    int runtime = 0, driver = 0;
    char release[64], about_driver[128] = "no driver", gemm[256];
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    struct version built = version_of(runtime), there = version_of(driver);
    driver_release(release, sizeof release);
    if (driver)
        snprintf(about_driver, sizeof about_driver, "driver %s%sfor CUDA %d.%d", release,
                 release[0] ? " " : "", there.major, there.minor);
    dt_cuda_gemm_version(gemm, sizeof gemm);
    snprintf(text, size, "CUDA        %d.%d, %s\ncuBLASLt    %s\n", built.major, built.minor,
             about_driver, gemm);
}

// ---- open

static dt_status read_properties(struct dt_device *device)
{
    struct cudaDeviceProp properties;
    DT_TRY(DT_CUDA(cudaGetDeviceProperties(&properties, device->index),
                   "querying the properties of GPU %d", device->index));
    snprintf(device->name, sizeof device->name, "%.127s", properties.name);
    snprintf(device->id, sizeof device->id, "GPU");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        dt_append(device->id, sizeof device->id, "%s%02x", dash ? "-" : "",
                  (unsigned char)properties.uuid.bytes[i]);
    }
    device->memory = (int64_t)properties.totalGlobalMem;
    device->major = properties.major;
    device->minor = properties.minor;
    device->multiprocessors = properties.multiProcessorCount;
    return DT_OK;
}

static dt_status check_code(const struct dt_device *device)
{
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, dt_cuda_kernel());
    if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction)
        return DT_CUDA(error, "loading a kernel on GPU %d (%s)", device->index, device->name);
    char built_for[128], hint[128] = "dtrain needs sm_80 or newer" OR_CPU;
    cudaGetLastError();
    dt_cuda_architectures(built_for, sizeof built_for);
    if (device->major >= 8)
        snprintf(hint, sizeof hint, "build dtrain with -DCMAKE_CUDA_ARCHITECTURES=%d%d" OR_CPU,
                 device->major, device->minor);
    return DT_FAIL(DT_USER, hint, "GPU %d (%s) is sm_%d%d, but this program has code for %s only",
                   device->index, device->name, device->major, device->minor, built_for);
}

static dt_status open_device(struct dt_device *device)
{
    char bus[32];
    DT_TRY(dt_cuda_make_current(device));
    DT_TRY(read_properties(device));
    DT_TRY(check_code(device));
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, device->index) == cudaSuccess)
        dt_cores_bind_near("/sys", bus);
    else
        cudaGetLastError();
    DT_TRY(dt_cuda_gemm_open(device, &device->gemm));
    return DT_OK;
}

dt_status dt_cuda_open(int index, int threads, struct dt_device **device)
{
    int n;
    DT_TRY(dt_cuda_count(&n));
    if (index < 0 || index >= n)
        return DT_FAIL(
            DT_USER,
            "start fewer ranks on this host, or request more GPUs (CUDA_VISIBLE_DEVICES, "
            "Slurm's --gres=gpu:N)",
            "there is no GPU %d: this process sees %d, numbered from 0", index, n);
    struct dt_device *d;
    DT_TRY(DT_NEW(&d, 1, "the CUDA device"));
    d->index = index;
    d->threads = threads;
    pthread_mutex_init(&d->lock, NULL);
    dt_status status = open_device(d);
    if (status != DT_OK)
        dt_cuda_close(d);
    else
        *device = d;
    return status;
}

void dt_cuda_close(struct dt_device *device)
{
    dt_cuda_gemm_close(device->gemm);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

// ---- info

static const char *after(const char *text, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(text, prefix, n) == 0 ? text + n : text;
}

// 0 for slices (MIG) and laptop versions, whose names begin like the model's.
static double peak_flops(const char *name)
{
    const char *model = after(after(name, "NVIDIA "), "GeForce ");
    if (strstr(model, "MIG") || strstr(model, "Laptop"))
        return 0;
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++) {
        const char *rest = after(model, peaks[i].name);
        if (rest != model && !isalnum((unsigned char)rest[0]))
            return peaks[i].tera * 1e12;
    }
    return 0;
}

dt_status dt_cuda_info(struct dt_device *device, struct dt_device_info *info)
{
    size_t free = 0, total = 0;
    DT_TRY(dt_cuda_make_current(device));
    DT_TRY(DT_CUDA(cudaMemGetInfo(&free, &total), "querying the memory of GPU %d", device->index));
    *info = (struct dt_device_info){.memory = device->memory,
                                    .memory_free = (int64_t)free,
                                    .threads = device->threads,
                                    .bf16 = device->major >= 8,
                                    .bf16_faster = device->major >= 8,
                                    .peak_flops = peak_flops(device->name)};
    snprintf(info->name, sizeof info->name, "%s", device->name);
    snprintf(info->id, sizeof info->id, "%s", device->id);
    char gemm[64];
    dt_cuda_gemm_version(gemm, sizeof gemm);
    snprintf(info->features, sizeof info->features, "sm_%d%d, %d SMs, cuBLASLt %s", device->major,
             device->minor, device->multiprocessors, gemm);
    return DT_OK;
}
