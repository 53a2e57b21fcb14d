// Each rank counts the devices that it sees, all ranks decide, each opens the one of its number
// among the ranks of its host, and all compare what they opened. Every phase ends in dt_agree.
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

static dt_status count_devices(int *n)
{
    const struct dt_known_backend *cuda = dt_backend_find("cuda");
    *n = 0;
    if (!cuda)
        return DT_FAIL(DT_USER, how_to_build, "this build of dtrain has no CUDA");
    DT_TRY(cuda->table->count(n));
    return DT_OK;
}

// auto: what this rank sees, or why it sees nothing; that is no error yet.
static struct dt_device_seen look(const struct dt_comm *comm)
{
    struct dt_device_seen seen = {0};
    snprintf(seen.host, sizeof seen.host, "%s", comm->info.host);
    if (count_devices(&seen.devices) != DT_OK) {
        seen.devices = 0;
        snprintf(seen.reason, sizeof seen.reason, "%.*s", (int)sizeof seen.reason - 1,
                 dt_error_current()->message);
        dt_error_clear();
    }
    return seen;
}

static int first_rank(const struct dt_device_seen *seen, int n, bool with)
{
    for (int i = 0; i < n; i++)
        if ((seen[i].devices > 0) == with)
            return i;
    return -1;
}

dt_status dt_device_decide(const struct dt_device_seen *seen, int n, bool *cuda)
{
    int with = first_rank(seen, n, true), without = first_rank(seen, n, false);
    *cuda = with >= 0;
    if (with < 0 || without < 0)
        return DT_OK;
    return DT_FAIL(DT_USER,
                   "fix that host or leave it out, start no more ranks than there are GPUs, or "
                   "set run.device = cpu for all",
                   "rank %d on host %s sees a CUDA device, but rank %d on host %s does not: %s",
                   with, seen[with].host, without, seen[without].host, seen[without].reason);
}

// The variable by which a launcher gave this job GPUs, or NULL.
static const char *variable_of_gpus(void)
{
    static const char *const names[] = {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS",
                                        "CUDA_VISIBLE_DEVICES"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && value[0] && strcmp(value, "-1") != 0 && strcmp(value, "NoDevFiles") != 0)
            return names[i];
    }
    return NULL;
}

// In a build for CPUs this is worth mentioning only in a job that has GPUs, or on a machine that
// has an NVIDIA driver.
static void mention_fallback(const struct dt_device_seen *seen)
{
    const char *variable = variable_of_gpus();
    if (variable && !dt_backend_find("cuda")) {
        dt_warn("this job has GPUs (%s=%s), but trains on CPUs: %s; %s", variable, getenv(variable),
                seen->reason, how_to_build);
        return;
    }
    if (dt_backend_find("cuda") || access("/proc/driver/nvidia/version", F_OK) == 0)
        dt_info("run.device = auto uses the CPU: %s", seen->reason);
}

// Rank 0 decides for all, on what every rank sees.
static dt_status decide_together(struct dt_comm *comm, const struct dt_device_seen *mine,
                                 bool *cuda)
{
    bool root = comm->info.rank == 0;
    size_t n = (size_t)comm->info.size;
    struct dt_device_seen *all;
    dt_status status = DT_NEW(&all, n, "the devices of %zu ranks", n);
    if (status == DT_OK)
        all[comm->info.rank] = *mine;
    status = dt_agree(comm, status);
    if (status == DT_OK)
        status = dt_all_gather(comm, all, sizeof *all);
    if (status == DT_OK)
        status = dt_agree(comm, root ? dt_device_decide(all, (int)n, cuda) : DT_OK);
    if (status == DT_OK)
        status = dt_broadcast(comm, cuda, sizeof *cuda, 0);
    if (status == DT_OK && root && !*cuda)
        mention_fallback(all);
    free(all);
    return status;
}

// *cuda: whether the ranks use CUDA devices, of which this one sees *visible.
static dt_status decide(const struct dt_device_choice_config *config, bool *cuda, int *visible)
{
    *cuda = config->choice == DT_DEVICE_CUDA;
    if (config->choice == DT_DEVICE_CPU)
        return DT_OK;
    if (config->choice == DT_DEVICE_CUDA)
        return dt_agree(config->comm, count_devices(visible));
    struct dt_device_seen mine = look(config->comm);
    *visible = mine.devices;
    return decide_together(config->comm, &mine, cuda);
}

int dt_device_ranks_on(const struct dt_device_opened *opened, int n, int rank)
{
    int ranks_on_device = opened[rank].id[0] == '\0'; // itself, where it is not found by its id
    for (int i = 0; i < n && opened[rank].id[0]; i++)
        ranks_on_device += strcmp(opened[i].id, opened[rank].id) == 0 &&
                           strcmp(opened[i].host, opened[rank].host) == 0;
    return ranks_on_device;
}

// "ranks 0, 2 and 3", those on the device of `first`, the lowest of them.
static void name_ranks(const struct dt_device_opened *opened, int n, int first, char *text,
                       size_t size)
{
    int left = dt_device_ranks_on(opened, n, first);
    snprintf(text, size, "ranks %d", first);
    for (int i = first + 1; i < n; i++)
        if (strcmp(opened[i].id, opened[first].id) == 0 &&
            strcmp(opened[i].host, opened[first].host) == 0)
            dt_append(text, size, "%s %d", --left > 1 ? "," : " and", i);
}

static int ranks_on_host(const struct dt_device_opened *opened, int n, const char *host)
{
    int ranks = 0;
    for (int i = 0; i < n; i++)
        ranks += strcmp(opened[i].host, host) == 0;
    return ranks;
}

static dt_status refuse(const struct dt_device_opened *opened, int n, int first)
{
    const struct dt_device_opened *one = &opened[first];
    char ranks[256], hint[DT_ERROR_HINT];
    int here = ranks_on_host(opened, n, one->host);
    name_ranks(opened, n, first, ranks, sizeof ranks);
    snprintf(hint, sizeof hint,
             "one rank per GPU: start fewer ranks on a host (mpirun --map-by ppr:%d:node), ask for "
             "more GPUs (Slurm: --gres=gpu:%d), or give all ranks of a host the same "
             "CUDA_VISIBLE_DEVICES; for tests run.share_device = true with comm.backend = mpi",
             one->visible, here);
    return DT_FAIL(DT_USER, hint,
                   "host %s: %s would share one GPU, %s (%d rank%s there, %d device%s visible)",
                   one->host, ranks, one->id, here, here == 1 ? "" : "s", one->visible,
                   one->visible == 1 ? "" : "s");
}

dt_status dt_device_refuse_shared(const struct dt_device_opened *opened, int n)
{
    for (int i = 0; i < n; i++)
        if (dt_device_ranks_on(opened, n, i) > 1)
            return refuse(opened, n, i);
    return DT_OK;
}

// What every rank opened, the same on all: opened is [n].
static dt_status compare_opened(const struct dt_device_choice_config *config,
                                const struct dt_device_opened *mine,
                                struct dt_device_opened *opened, int *ranks_on_device)
{
    struct dt_comm *comm = config->comm;
    int n = comm->info.size;
    opened[comm->info.rank] = *mine;
    DT_TRY(dt_all_gather(comm, opened, sizeof *opened));
    *ranks_on_device = dt_device_ranks_on(opened, n, comm->info.rank);
    bool judge = comm->info.rank == 0 && !config->share;
    return dt_agree(comm, judge ? dt_device_refuse_shared(opened, n) : DT_OK);
}

static dt_status check_opened(const struct dt_device_choice_config *config,
                              const struct dt_backend *backend, int visible, int *ranks_on_device)
{
    struct dt_comm *comm = config->comm;
    struct dt_device_opened mine = {.visible = visible}, *opened;
    struct dt_device_info info;
    dt_status status = DT_NEW(&opened, comm->info.size, "the devices of %d ranks", comm->info.size);
    if (status == DT_OK)
        status = backend->table->info(backend->device, &info);
    status = dt_agree(comm, status);
    if (status == DT_OK) {
        snprintf(mine.host, sizeof mine.host, "%s", comm->info.host);
        snprintf(mine.id, sizeof mine.id, "%s", info.id);
        status = compare_opened(config, &mine, opened, ranks_on_device);
    }
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
    // Slurm may show each rank a device of its own, always number 0.
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
    long long cores = threads > 1 ? dt_cores_of_job() : 1;
    if (threads <= cores)
        return DT_OK;
    return DT_FAIL(DT_USER, "0 uses all cores, or a rank's share of them",
                   "%s: %lld, but only %lld core%s may be used here", name, (long long)threads,
                   cores, cores == 1 ? "" : "s");
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
