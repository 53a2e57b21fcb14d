// Searches by the memory plan for what fits on a device.
#include "train/propose.h"

#include "base/text.h"

#include <string.h>

enum { WINDOW_UNIT = 64, LONGEST = 1 << 24 };

const struct dt_known_device dt_known_devices[] = {
    {"rtx3070-8", 8}, {"rtx3060-12", 12}, {"rtx4090-24", 24}, {"rtx5090-32", 32},
    {"a100-40", 40},  {"h100-80", 80},    {"h200-141", 141},  {0},
};

const char *dt_known_devices_text(char text[DT_DEVICES_TEXT])
{
    text[0] = 0;
    for (const struct dt_known_device *d = dt_known_devices; d->name; d++)
        dt_append(text, DT_DEVICES_TEXT, "%s%s", text[0] ? ", " : "", d->name);
    return text;
}

struct search {
    const struct dt_job *job;
    const struct dt_backend *gpu; // the plan is for it; NULL: for the job's own device
    enum dt_dtype storage;
    bool host;                   // the plan's host memory counts, too
    enum dt_recompute recompute; // of_segment
};

// `length` 0: the job's windows. `segment` < 0: the job's segments.
static dt_status bytes_of(const struct search *search, enum dt_recompute recompute,
                          int64_t micro_batch, int64_t length, int64_t segment, int64_t *bytes)
{
    struct dt_job trial = *search->job;
    struct dt_memory_plan plan = {0};
    trial.backend = search->gpu ? *search->gpu : trial.backend;
    trial.model.storage = search->storage;
    trial.model.recompute = recompute;
    trial.micro_batch = micro_batch;
    if (length > 0) {
        trial.settings.data.seq_len = length;
        trial.local_batch = micro_batch;
    }
    if (segment >= 0)
        trial.model.segment = segment;
    DT_TRY(dt_job_memory(&trial, &plan));
    *bytes = dt_memory_plan_bytes(&plan, search->host);
    return DT_OK;
}

static dt_status of_batch(void *context, enum dt_recompute recompute, int64_t micro_batch,
                          int64_t *bytes)
{
    return bytes_of(context, recompute, micro_batch, 0, -1, bytes);
}

static dt_status of_segment(void *context, int64_t segment, int64_t *bytes)
{
    const struct search *search = context;
    return bytes_of(search, search->recompute, 1, 0, segment, bytes);
}

// The longest window of this kind that fits, a multiple of WINDOW_UNIT; 0: none.
static dt_status longest_window(const struct search *search, enum dt_recompute recompute,
                                int64_t free, int64_t *length, int64_t *bytes)
{
    int64_t low = 0, high = LONGEST / WINDOW_UNIT + 1; // low fits, high does not
    *bytes = 0;
    while (high - low > 1) {
        int64_t needed, middle = low + (high - low) / 2;
        DT_TRY(bytes_of(search, recompute, 1, middle * WINDOW_UNIT, -1, &needed));
        if (needed <= free) {
            low = middle;
            *bytes = needed;
        } else
            high = middle;
    }
    *length = low * WINDOW_UNIT;
    return DT_OK;
}

// The memory that training may use.
static dt_status budget(const struct dt_job *job, const char *name, struct dt_proposal *p)
{
    char known[DT_DEVICES_TEXT];
    struct dt_device_info info;
    const struct dt_known_device *device = dt_known_devices;
    DT_TRY(dt_backend_info(&job->backend, &info));
    p->device = name[0] ? name : "this device";
    if (!name[0]) {
        p->bytes = job->backend.table->unified
                       ? info.memory / job->comm->info.local_size
                       : info.memory_free - dt_job_reserved_memory(job, &info);
        return DT_OK;
    }
    while (device->name && strcmp(device->name, name) != 0)
        device++;
    if (!device->name)
        return DT_FAIL(DT_USER, dt_known_devices_text(known), "--device: '%.32s' is not known",
                       name);
    info.memory = (device->gib << 30) / 100 * 97;
    int64_t reserved = info.memory / 128; // as dt_job_reserved_memory
    p->bytes = info.memory - (reserved < INT64_C(1) << 29 ? reserved : INT64_C(1) << 29);
    return DT_OK;
}

dt_status dt_propose(const struct dt_job *job, const char *device, struct dt_proposal *p)
{
    struct search search = {.job = job,
                            .storage = job->model.storage,
                            .host = !device[0] && job->backend.table->unified};
    struct dt_planned_tables room;
    struct dt_backend gpu;
    int64_t longest = 0;
    *p = (struct dt_proposal){0};
    DT_TRY(budget(job, device, p));
    if (device[0]) {
        dt_backend_plan_gpu(&job->backend, &room, &gpu);
        search.gpu = &gpu;
        if (job->settings.run.precision == DT_PRECISION_AUTO)
            search.storage = DT_BF16;
    }
    p->storage = search.storage;
    DT_TRY(dt_fit_search(of_batch, &search, dt_job_takes_one_sequence(job) ? 1 : job->local_batch,
                         dt_job_sum_order(job), p->bytes, p->batches, &p->n_batches));
    for (int kind = 0; kind <= DT_RECOMPUTE_BLOCK; kind++) {
        int64_t length = 0, bytes;
        DT_TRY(longest_window(&search, (enum dt_recompute)kind, p->bytes, &length, &bytes));
        if (length > longest)
            p->windows[p->n_windows++] =
                (struct dt_fit_length){(enum dt_recompute)kind, longest = length, bytes};
    }
    const struct dt_backend *backend = search.gpu ? search.gpu : &job->backend;
    longest = 0;
    for (int kind = 0; kind <= DT_RECOMPUTE_BLOCK && dt_job_may_segment(job); kind++) {
        const struct dt_segment_choice choice = {.length = job->settings.data.seq_len,
                                                 .unit = dt_segment_unit(backend),
                                                 .ranks = job->settings.comm.context,
                                                 .free = p->bytes};
        int64_t length, bytes;
        search.recompute = (enum dt_recompute)kind;
        DT_TRY(dt_fit_segment(of_segment, &search, &choice, &length, &bytes));
        if (length < choice.length && bytes <= p->bytes && length > longest)
            p->segments[p->n_segments++] =
                (struct dt_fit_length){(enum dt_recompute)kind, longest = length, bytes};
    }
    return DT_OK;
}
