// Checks the settings against what the device and the ranks allow, and says how gradients are sent.
#include "job/job.h"

#include "base/log.h"
#include "comm/device_comm.h"

#include <stdio.h>
#include <string.h>

bool dt_job_uses_device_comm(const struct dt_job *job)
{
    int asked = job->settings.comm.backend;
    bool wanted =
        asked == DT_COMM_NCCL || (asked == DT_COMM_AUTO && !job->settings.run.share_device);
    return wanted && job->backend.table->device_comm && job->comm->info.size > 1 &&
           dt_device_comm_known;
}

bool dt_job_wants_selftest(const struct dt_job *job)
{
    const struct dt_comm_info *info = &job->comm->info;
    int asked = job->settings.comm.selftest;
    return info->size > 1 &&
           (asked == DT_TOGGLE_TRUE || (asked == DT_TOGGLE_AUTO && (info->local_size < info->size ||
                                                                    dt_job_uses_device_comm(job))));
}

dt_status dt_job_check_launch(const struct dt_job *job, enum dt_purpose purpose)
{
    const struct dt_comm_info *info = &job->comm->info;
    int asked = job->settings.comm.backend;
    if (purpose == DT_PURPOSE_TRAIN && dt_comm_batch_tasks() > 1)
        return DT_FAIL(DT_USER,
                       "start it with `srun --mpi=pmix dtrain …` or `mpirun dtrain …`; to train on "
                       "one process: srun -n 1",
                       "this Slurm job has %d tasks, but training was started as one process",
                       dt_comm_batch_tasks());
    if (asked == DT_COMM_SELF && info->size > 1)
        return dt_config_reject(job->config, "comm.backend",
                                "leave it at auto, or start one process",
                                "self, but %d ranks were launched", info->size);
    if (asked == DT_COMM_MPI && strcmp(info->backend, "mpi") != 0)
        return dt_config_reject(job->config, "comm.backend",
                                "start with mpirun -np N dtrain …, or leave it at auto",
                                "mpi, but no launcher started this process");
    if (info->size % job->settings.comm.context != 0)
        return dt_config_reject(job->config, "comm.context",
                                "use a divisor of the number of ranks, or start more",
                                "%lld ranks cannot share each window among %d ranks",
                                (long long)job->settings.comm.context, info->size);
    return purpose == DT_PURPOSE_WHOLE
               ? DT_OK
               : dt_settings_check_batch(&job->settings, job->config, dt_job_groups(job));
}

dt_status dt_job_check_device(const struct dt_job *job)
{
    const struct dt_device_table *device = job->backend.table;
    int asked = job->settings.comm.backend;
    if (asked == DT_COMM_NCCL && !device->device_comm)
        return dt_config_reject(job->config, "comm.backend",
                                "leave it at auto: ranks on CPUs use MPI",
                                "nccl, but the ranks run on the CPU (run.device = %s)",
                                dt_config_find(job->config, "run.device")->text);
    if (job->settings.run.cuda_graph == DT_TOGGLE_TRUE && !device->graphs)
        return dt_config_reject(job->config, "run.cuda_graph", "leave it at auto",
                                "true, but the device is a CPU, which has no graphs");
    if (asked == DT_COMM_AUTO && device->device_comm && job->comm->info.size > 1 &&
        job->settings.run.share_device)
        dt_info("comm.backend = auto uses mpi: NCCL does not support ranks that share a GPU");
    return DT_OK;
}

dt_status dt_job_check_nccl(const struct dt_job *job)
{
    char version[64];
    if (!dt_job_uses_device_comm(job) ||
        dt_device_comm_known->version(version, sizeof version) == DT_OK)
        return DT_OK;
    struct dt_error error;
    dt_error_take(&error);
    return DT_FAIL(error.code,
                   "install NCCL (Debian, Ubuntu: libnccl2), or set comm.backend = mpi, which is "
                   "slower: gradients then go through host memory",
                   "%d ranks on GPUs sum their gradients with NCCL (comm.backend = %s): %s",
                   job->comm->info.size, dt_config_find(job->config, "comm.backend")->text,
                   error.message);
}

dt_status dt_job_describe_device(const struct dt_job *job, char text[DT_DEVICE_TEXT])
{
    struct dt_device_info info;
    DT_TRY(dt_backend_info(&job->backend, &info));
    snprintf(text, DT_DEVICE_TEXT, "%.*s (%s)", (int)strcspn(info.name, ","), info.name,
             info.features);
    return DT_OK;
}
