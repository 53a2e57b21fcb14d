// Opens a device on each rank: every rank counts the devices that it sees, all ranks decide
// together, each opens the device with its local rank, and all compare what they opened. Every
// phase ends in dt_agree, so that ranks fail together.
#include "job/device.h"

#include "base/cores.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "job/settings.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char how_to_build[] = "build with a CUDA toolkit (cmake --preset cuda-release, or "
                                   "-DDTRAIN_CUDA=ON), or set run.device = cpu";

dt_status dt_device_decide(const struct dt_device_seen *seen, int n, bool *cuda)
{
    int with = -1, without = -1; // the first such ranks
    for (int i = n - 1; i >= 0; i--)
        *(seen[i].devices > 0 ? &with : &without) = i;
    *cuda = with >= 0;
    if (with < 0 || without < 0)
        return DT_OK;
    return DT_FAIL(DT_USER,
                   "fix that host or leave it out, start no more ranks than there are GPUs, or "
                   "set run.device = cpu for all",
                   "rank %d on host %s sees a CUDA device, but rank %d on host %s does not: %s",
                   with, seen[with].host, without, seen[without].host, seen[without].reason);
}

// A CPU build mentions the fallback only if a launcher gave the job GPUs, or if the machine has an
// NVIDIA driver.
static void mention_fallback(const char *reason)
{
    static const char *const names[] = {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS",
                                        "CUDA_VISIBLE_DEVICES"};
    bool built = dt_backend_find("cuda");
    for (size_t i = 0; i < sizeof names / sizeof *names && !built; i++) {
        const char *value = getenv(names[i]);
        if (value && value[0] && strcmp(value, "-1") != 0 && strcmp(value, "NoDevFiles") != 0) {
            dt_warn("this job has GPUs (%s=%s), but trains on CPUs: %s; %s", names[i], value,
                    reason, how_to_build);
            return;
        }
    }
    if (built || access("/proc/driver/nvidia/version", F_OK) == 0)
        dt_info("run.device = auto uses the CPU: %s", reason);
}

// *cuda: whether the ranks use CUDA devices; *visible: how many this rank sees. For `auto` rank 0
// decides by what all ranks see, so a rank without devices is not yet an error.
static dt_status decide(const struct dt_device_choice_config *config, bool *cuda, int *visible)
{
    struct dt_comm *comm = config->comm;
    bool root = comm->info.rank == 0;
    size_t n = (size_t)comm->info.size;
    struct dt_device_seen mine = {0}, *all;
    *cuda = config->choice == DT_DEVICE_CUDA;
    if (config->choice == DT_DEVICE_CPU)
        return DT_OK;
    const struct dt_known_backend *known = dt_backend_find("cuda");
    dt_status status = known ? known->table->count(visible)
                             : DT_FAIL(DT_USER, how_to_build, "this build of dtrain has no CUDA");
    if (*cuda)
        return dt_agree(comm, status);
    snprintf(mine.host, sizeof mine.host, "%s", comm->info.host);
    if (status != DT_OK) {
        *visible = 0;
        snprintf(mine.reason, sizeof mine.reason, "%.*s", (int)sizeof mine.reason - 1,
                 dt_error_current()->message);
        dt_error_clear();
    }
    mine.devices = *visible;
    status = DT_NEW(&all, n, "the devices of %zu ranks", n);
    DT_TRY_GOTO(status, out, dt_agree(comm, status));
    all[comm->info.rank] = mine;
    DT_TRY_GOTO(status, out, dt_all_gather(comm, all, sizeof *all));
    DT_TRY_GOTO(status, out, dt_agree(comm, root ? dt_device_decide(all, (int)n, cuda) : DT_OK));
    DT_TRY_GOTO(status, out, dt_broadcast(comm, cuda, sizeof *cuda, 0));
    if (root && !*cuda)
        mention_fallback(mine.reason);
out:
    free(all);
    return status;
}

int dt_device_ranks_on(const struct dt_device_opened *opened, int n, int rank)
{
    int ranks_on_device = opened[rank].id[0] == '\0'; // counts itself if it has no id
    for (int i = 0; i < n && opened[rank].id[0]; i++)
        ranks_on_device += strcmp(opened[i].id, opened[rank].id) == 0 &&
                           strcmp(opened[i].host, opened[rank].host) == 0;
    return ranks_on_device;
}

dt_status dt_device_refuse_shared(const struct dt_device_opened *opened, int n)
{
    char ranks[256], hint[DT_ERROR_HINT];
    int first = 0, here = 0; // the lowest rank on the device
    while (first < n && dt_device_ranks_on(opened, n, first) <= 1)
        first++;
    if (first == n)
        return DT_OK;
    const struct dt_device_opened *one = &opened[first];
    int left = dt_device_ranks_on(opened, n, first);
    snprintf(ranks, sizeof ranks, "ranks %d", first); // "ranks 0, 2 and 3"
    for (int i = 0; i < n; i++) {
        bool on_host = strcmp(opened[i].host, one->host) == 0;
        here += on_host;
        if (i > first && on_host && strcmp(opened[i].id, one->id) == 0)
            dt_append(ranks, sizeof ranks, "%s %d", --left > 1 ? "," : " and", i);
    }
    snprintf(hint, sizeof hint,
             "one rank per GPU: start fewer ranks on a host (mpirun --map-by ppr:%d:node), ask for "
             "more GPUs (Slurm: --gres=gpu:%d), or give all ranks of a host the same "
             "CUDA_VISIBLE_DEVICES; for tests run.share_device = true with comm.backend = mpi",
             one->visible, here);
    return DT_FAIL(DT_USER, hint, "host %s: %s would share one GPU, %s (%s there, %s visible)",
                   one->host, ranks, one->id, DT_COUNT(here, "ranks"),
                   DT_COUNT(one->visible, "devices"));
}

// Compares the devices that the ranks opened.
static dt_status check_opened(const struct dt_device_choice_config *config,
                              const struct dt_backend *backend, int visible, int *ranks_on_device)
{
    struct dt_comm *comm = config->comm;
    int n = comm->info.size, rank = comm->info.rank;
    struct dt_device_opened *opened;
    struct dt_device_info info;
    dt_status status = DT_NEW(&opened, n, "the devices of %d ranks", n);
    if (status == DT_OK)
        status = backend->table->info(backend->device, &info);
    DT_TRY_GOTO(status, out, dt_agree(comm, status));
    opened[rank].visible = visible;
    snprintf(opened[rank].host, sizeof opened->host, "%s", comm->info.host);
    snprintf(opened[rank].id, sizeof opened->id, "%s", info.id);
    DT_TRY_GOTO(status, out, dt_all_gather(comm, opened, sizeof *opened));
    *ranks_on_device = dt_device_ranks_on(opened, n, rank);
    bool judge = rank == 0 && !config->share;
    status = dt_agree(comm, judge ? dt_device_refuse_shared(opened, n) : DT_OK);
out:
    free(opened);
    return status;
}

dt_status dt_device_open(const struct dt_device_choice_config *config, struct dt_backend *backend,
                         int *ranks_on_device)
{
    bool cuda;
    int visible = 0;
    *backend = (struct dt_backend){0};
    *ranks_on_device = 1;
    DT_TRY(decide(config, &cuda, &visible));
    // Slurm may show each rank a single device, number 0.
    int index = cuda ? config->comm->info.local_rank % visible : 0;
    dt_status status = dt_agree(
        config->comm, dt_backend_open(cuda ? "cuda" : "cpu", index, config->threads, backend));
    if (status == DT_OK && cuda)
        status = check_opened(config, backend, visible, ranks_on_device);
    if (status != DT_OK)
        dt_backend_close(backend);
    return status;
}

dt_status dt_device_check_threads(const char *name, int64_t threads)
{
    int64_t cores = threads > 1 ? dt_cores_of_job() : 1;
    if (threads <= cores)
        return DT_OK;
    return DT_FAIL(DT_USER, "0 uses all cores, or a rank's share of them",
                   "%s: %lld, but only %s may be used here", name, (long long)threads,
                   DT_COUNT(cores, "cores"));
}

dt_status dt_device_open_alone(int choice, int threads, struct dt_backend *backend)
{
    bool widened;
    int ranks_on_device;
    struct dt_device_choice_config config = {
        .choice = choice, .threads = threads > 0 ? threads : dt_cores_share(0, 1, &widened)};
    DT_TRY(dt_comm_open(DT_COMM_KIND_SELF, &config.comm));
    dt_status status = dt_device_open(&config, backend, &ranks_on_device);
    dt_comm_close(config.comm);
    return status;
}
