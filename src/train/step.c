// A step's work in the order of the data's way, and its capture into graphs.
#include "train/step.h"

#include "base/clock.h"
#include "comm/job_control.h"

#include <math.h>
#include <stdlib.h>

enum { MARKS = 4 };

// Where on the stream the device's clock is read.
enum mark { BEGIN, BACKWARD_DONE, SUMS_THERE, END };

// What host and device tell each other of a step, pinned.
struct report {
    float lr; // to the device
    struct dt_update_control control;
    uint64_t marks[MARKS];
};

// What the host knows of a step when it has launched it.
struct launch {
    double start; // dt_seconds
    double lr, data_wait_ms;
    int graphs;
};

// The kinds of work on a micro-batch that differ in more than data: its place in the step, and
// which arrays it has (a bit each from KIND_ARRAYS on).
enum { KIND_FIRST = 1, KIND_LAST = 2, KIND_ARRAYS = 4, KINDS = KIND_ARRAYS << DT_BATCH_ARRAYS };

struct pass {
    int times; // taken so far
    struct dt_graph *graph;
};

struct dt_stepper {
    struct dt_stepper_config config;
    const struct dt_backend *backend;
    struct dt_model *model;
    struct dt_optimizer optimizer;
    struct dt_input input;
    struct dt_buckets *buckets;
    struct dt_stream *stream;
    bool captures;
    struct pass passes[KINDS];
    uint64_t *marks;                            // [MARKS], device memory
    struct report *reports;                     // [DT_STEPS_IN_FLIGHT], pinned
    struct dt_event *there[DT_STEPS_IN_FLIGHT]; // the report is
    struct launch launches[DT_STEPS_IN_FLIGHT];
    int64_t launched, collected;
    int64_t step;        // launched last, for progress and messages
    uint64_t last_end;   // mark END of the step collected last; 0: none
    double last_collect; // dt_seconds
};

// Creation.

// Without the pointers: what the memory plan asks for, too.
static struct dt_buckets_config buckets_config(const struct dt_params *params,
                                               const struct dt_stepper_config *config)
{
    return (struct dt_buckets_config){.elements = params->elements,
                                      .n_rows = params->n,
                                      .bucket_bytes = config->bucket_bytes,
                                      .wire = config->wire,
                                      .n_sums = sizeof(struct dt_loss_sum) / sizeof(double),
                                      .between_devices = config->between_devices};
}

void dt_stepper_plan(const struct dt_backend *backend, const struct dt_params *params,
                     const struct dt_array_list *arrays, const struct dt_stepper_config *config,
                     struct dt_memory_plan *plan)
{
    struct dt_buckets_config buckets = buckets_config(params, config);
    int n_ranks = config->comm->info.size;
    dt_memory_plan_add(plan, "optimizer states", dt_optimizer_bytes(params), false);
    dt_memory_plan_add(plan, "input", dt_input_bytes(arrays, &config->batch), false);
    dt_memory_plan_add(plan, "bf16 buckets", dt_buckets_bytes(&buckets, n_ranks), false);
    dt_memory_plan_add(plan, "pinned buckets", dt_buckets_host_bytes(&buckets, backend, n_ranks),
                       true);
}

static dt_status create_buckets(struct dt_stepper *s)
{
    const struct dt_params *params = dt_model_params(s->model);
    int64_t *ends = malloc((size_t)params->n * sizeof *ends);
    if (!ends)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %d rows", params->n);
    for (int i = 0; i < params->n; i++)
        ends[i] = i + 1 < params->n ? params->rows[i + 1].offset : params->elements;
    struct dt_buckets_config config = buckets_config(params, &s->config);
    config.gradients = dt_model_gradients(s->model);
    config.row_ends = ends;
    config.sums = (double *)s->optimizer.sum;
    config.stream = s->stream;
    dt_status status = dt_buckets_create(s->config.comm, s->backend, &config, &s->buckets);
    free(ends);
    return status;
}

static dt_status create_all(struct dt_stepper *s)
{
    const struct dt_device_table *table = s->backend->table;
    struct dt_device *device = s->backend->device;
    DT_TRY(table->stream_create(device, &s->stream));
    DT_TRY(dt_optimizer_create(s->backend, s->model, &s->config.optimizer, &s->optimizer));
    DT_TRY(dt_input_create(s->backend, dt_model_arrays(s->model), &s->config.batch, &s->input));
    DT_TRY(create_buckets(s));
    DT_TRY(table->alloc(device, MARKS * (int64_t)sizeof *s->marks, (void **)&s->marks));
    DT_TRY(table->alloc_host(device, DT_STEPS_IN_FLIGHT * (int64_t)sizeof *s->reports,
                             (void **)&s->reports));
    for (int i = 0; i < DT_STEPS_IN_FLIGHT; i++)
        DT_TRY(table->event_create(device, &s->there[i]));
    return DT_OK;
}

dt_status dt_stepper_create(const struct dt_backend *backend, struct dt_model *model,
                            const struct dt_stepper_config *config, struct dt_stepper **stepper)
{
    struct dt_stepper *s = malloc(sizeof *s);
    if (!s)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a training step");
    *s = (struct dt_stepper){.config = *config, .backend = backend, .model = model};
    dt_status status = create_all(s);
    if (status != DT_OK)
        dt_stepper_destroy(s);
    else
        *stepper = s;
    return status;
}

dt_status dt_stepper_connect(struct dt_stepper *s)
{
    s->captures = s->config.graphs && s->backend->table->graphs;
    return dt_buckets_connect(s->buckets);
}

// Steps may be in flight where the run ends on an error, which stays as it is.
static void finish_work(const struct dt_stepper *s)
{
    struct dt_error error;
    dt_error_take(&error);
    s->backend->table->stream_sync(s->backend->device, s->stream);
    dt_error_restore(&error);
}

void dt_stepper_destroy(struct dt_stepper *s)
{
    if (!s)
        return;
    const struct dt_device_table *table = s->backend->table;
    struct dt_device *device = s->backend->device;
    if (s->stream)
        finish_work(s);
    for (int i = 0; i < KINDS; i++)
        if (s->passes[i].graph)
            table->graph_destroy(device, s->passes[i].graph);
    dt_buckets_destroy(s->buckets);
    dt_input_destroy(&s->input);
    if (s->optimizer.backend)
        dt_optimizer_destroy(&s->optimizer);
    for (int i = 0; i < DT_STEPS_IN_FLIGHT; i++)
        if (s->there[i])
            table->event_destroy(device, s->there[i]);
    if (s->reports)
        table->free_host(device, s->reports);
    if (s->marks)
        table->free(device, s->marks);
    if (s->stream)
        table->stream_destroy(device, s->stream);
    free(s);
}

struct dt_optimizer *dt_stepper_optimizer(struct dt_stepper *s)
{
    return &s->optimizer;
}

struct dt_input *dt_stepper_input(struct dt_stepper *s)
{
    return &s->input;
}

struct dt_stream *dt_stepper_stream(const struct dt_stepper *s)
{
    return s->stream;
}

int dt_stepper_depth(const struct dt_stepper *s)
{
    return s->backend->table->unified ? 1 : DT_STEPS_IN_FLIGHT;
}

int dt_stepper_in_flight(const struct dt_stepper *s)
{
    return (int)(s->launched - s->collected);
}

// The work.

static void say(const struct dt_stepper *s, const char *phase)
{
    dt_comm_progress(s->config.comm, s->step, phase);
}

static dt_status mark(struct dt_stepper *s, enum mark mark)
{
    struct dt_stamp_args args = {.time = &s->marks[mark]};
    return dt_stamp(s->backend, &args, s->stream);
}

static dt_status row_ready(void *buckets, int64_t row)
{
    return dt_buckets_ready(buckets, row);
}

static dt_status update(struct dt_stepper *s)
{
    say(s, "summing gradients");
    DT_TRY(mark(s, BACKWARD_DONE));
    DT_TRY(dt_buckets_wait(s->buckets));
    DT_TRY(mark(s, SUMS_THERE));
    return dt_optimizer_step(&s->optimizer, (double)s->config.tokens, s->stream);
}

static dt_status forward_backward(struct dt_stepper *s, const struct dt_model_input *input,
                                  int kind)
{
    double scale = 1.0 / (double)s->config.tokens;
    bool accumulate = !(kind & KIND_FIRST), last = kind & KIND_LAST;
    say(s, "forward");
    DT_TRY(dt_model_forward(s->model, input, NULL, NULL, s->stream));
    DT_TRY(dt_model_loss(s->model, input, scale, accumulate, s->optimizer.sum, s->stream));
    say(s, "backward");
    if (last)
        DT_TRY(dt_buckets_sums_ready(s->buckets));
    DT_TRY(dt_model_backward(s->model, input, NULL, accumulate, last ? row_ready : NULL, s->buckets,
                             s->stream));
    return last ? update(s) : DT_OK;
}

static dt_status capture(struct dt_stepper *s, const struct dt_model_input *input, int kind)
{
    const struct dt_device_table *table = s->backend->table;
    DT_TRY(table->capture_begin(s->backend->device, s->stream));
    dt_status status = forward_backward(s, input, kind);
    if (status != DT_OK)
        table->capture_cancel(s->backend->device, s->stream);
    DT_TRY_NOTE(status, "capturing a step (run.cuda_graph = false does without)");
    return table->capture_end(s->backend->device, s->stream, &s->passes[kind].graph);
}

// Gradients that travel through the host need it in the last pass.
static bool is_captured(const struct dt_stepper *s, int kind)
{
    return s->captures && (!(kind & KIND_LAST) || dt_buckets_can_be_captured(s->buckets));
}

// The first time as it is, for libraries make things ready then that cannot be captured.
static dt_status take_pass(struct dt_stepper *s, const struct dt_model_input *input, int kind)
{
    struct pass *pass = &s->passes[kind];
    if (!is_captured(s, kind) || pass->times++ == 0)
        return forward_backward(s, input, kind);
    if (!pass->graph)
        DT_TRY(capture(s, input, kind));
    s->launches[s->launched % DT_STEPS_IN_FLIGHT].graphs++;
    return s->backend->table->graph_launch(s->backend->device, pass->graph, s->stream);
}

static dt_status take_passes(struct dt_stepper *s, int64_t micro_batches)
{
    for (int64_t i = 0; i < micro_batches; i++) {
        struct dt_model_input input;
        DT_TRY(dt_input_micro_batch(&s->input, s->stream, &input));
        int kind = (i == 0 ? KIND_FIRST : 0) | (i == micro_batches - 1 ? KIND_LAST : 0);
        for (int array = 0; array < DT_BATCH_ARRAYS; array++)
            kind |= input.arrays[array] ? KIND_ARRAYS << array : 0;
        DT_TRY(take_pass(s, &input, kind));
    }
    return DT_OK;
}

static dt_status send_report(struct dt_stepper *s)
{
    const struct dt_device_table *table = s->backend->table;
    struct dt_device *device = s->backend->device;
    int64_t slot = s->launched % DT_STEPS_IN_FLIGHT;
    struct report *report = &s->reports[slot];
    DT_TRY(table->to_host(device, &report->control, s->optimizer.control, sizeof report->control,
                          s->stream));
    DT_TRY(table->to_host(device, report->marks, s->marks, sizeof report->marks, s->stream));
    return table->event_record(device, s->there[slot], s->stream);
}

dt_status dt_stepper_launch(struct dt_stepper *s, struct dt_loader *loader, int64_t step, double lr)
{
    int64_t slot = s->launched % DT_STEPS_IN_FLIGHT, micro_batches;
    struct launch *launch = &s->launches[slot];
    s->step = step;
    *launch = (struct launch){.start = dt_seconds(), .lr = lr};
    s->reports[slot].lr = (float)lr;
    say(s, "reading data");
    DT_TRY(dt_input_next(&s->input, loader, s->stream, &micro_batches, &launch->data_wait_ms));
    DT_TRY(mark(s, BEGIN));
    DT_TRY(dt_to_device(s->backend, s->optimizer.lr, &s->reports[slot].lr,
                        sizeof s->reports[slot].lr, s->stream));
    DT_TRY(dt_fill(s->backend, s->optimizer.sum, 0, sizeof *s->optimizer.sum, s->stream));
    DT_TRY(take_passes(s, micro_batches));
    DT_TRY(mark(s, END));
    DT_TRY(send_report(s));
    s->launched++;
    return DT_OK;
}

static double milliseconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * 1e-6 : 0;
}

dt_status dt_stepper_collect(struct dt_stepper *s, struct dt_step_result *result)
{
    int64_t slot = s->collected % DT_STEPS_IN_FLIGHT;
    const struct report *report = &s->reports[slot];
    const struct launch *launch = &s->launches[slot];
    if (s->collected == s->launched)
        return DT_FAIL(DT_MACHINE, NULL, "no step is in flight");
    say(s, "waiting for the device");
    double waiting = dt_seconds();
    DT_TRY(s->backend->table->event_sync(s->backend->device, s->there[slot]));
    double now = dt_seconds();
    const uint64_t *marks = report->marks;
    *result = (struct dt_step_result){
        .control = dt_optimizer_readable(&report->control),
        .lr = launch->lr,
        .seconds = now - fmax(launch->start, s->last_collect),
        .data_wait_ms = launch->data_wait_ms,
        .host_wait_ms = (now - waiting) * 1e3,
        .comm_wait_ms = milliseconds(marks[BACKWARD_DONE], marks[SUMS_THERE]),
        .idle_ms = s->last_end ? milliseconds(s->last_end, marks[BEGIN]) : 0,
        .graphs = launch->graphs};
    s->last_end = marks[END];
    s->last_collect = now;
    s->collected++;
    return DT_OK;
}
