// Runs a training step, from the loader's batch to the report of its result.
#include "train/step.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/round.h"
#include "base/trace.h"
#include "comm/job_control.h"
#include "kernels/sum_squares.h"

#include <math.h>

// Marks: points on the stream at which the device's clock is read. Each micro-batch sets LAST_…, so
// those of the last one remain. With sharded weights, the first micro-batch of a step that gathers
// them sets WANTED and ARRIVED, and GATHERED is set if they are sent through the host.
enum mark {
    BEGIN,
    WANTED,
    ARRIVED,
    LAST_BEGIN,
    LAST_FORWARD_DONE,
    BACKWARD_DONE,
    SUMMED,
    UPDATED,
    GATHERED,
    END,
    MARKS
};

// On an asynchronous device, ops are timed in the second step and in every 128th after it.
enum { STEPS_PER_TIMED = 128 };

// Data that host and device exchange in a step; pinned memory.
struct dt_step_report {
    float lr; // to the device; the rest to the host
    struct dt_update_control control;
    struct dt_loss_sum sum;
    uint64_t marks[MARKS];
};

// The end of a row, including the padding after it.
static int64_t row_end(const struct dt_params *params, int64_t row)
{
    return row + 1 < params->n ? params->rows[row + 1].offset : params->elements;
}

static bool is_gathered_as_master(const struct dt_params *params,
                                  const struct dt_stepper_config *config, int row)
{
    return config->storage == DT_BF16 && params->rows[row].reads_master;
}

// The configuration without pointers, for the memory plan.
static struct dt_buckets_config buckets_config(const struct dt_params *params,
                                               const struct dt_stepper_config *config)
{
    int64_t largest = 0, masters = 0;
    for (int i = 0; i < params->n; i++) {
        int64_t elements = row_end(params, i) - params->rows[i].offset;
        largest = dt_max_i64(largest, elements);
        masters += is_gathered_as_master(params, config, i) ? elements : 0;
    }
    return (struct dt_buckets_config){.elements = params->elements,
                                      .n_rows = params->n,
                                      .largest_row = largest,
                                      .bucket_bytes = config->bucket_bytes,
                                      .wire = config->wire,
                                      .order = config->order,
                                      .n_sums = sizeof(struct dt_loss_sum) / sizeof(double),
                                      .between_devices = config->between_devices,
                                      .context = (int)config->batch.context,
                                      .selftest = config->selftest,
                                      .shard = config->shard,
                                      .storage = config->storage,
                                      .masters = {.elements = masters},
                                      .gathers_gradients = config->optimizer.muon,
                                      .ring = params->ring,
                                      .n_norms = dt_ceil_div(params->elements, DT_NORM_BLOCK)};
}

// Micro-batches summed by a tree; 1 if the model accumulates them.
static int64_t leaves(const struct dt_stepper_config *config)
{
    return config->order == DT_SUM_TREE ? config->batch.sequences / config->batch.micro : 1;
}

int64_t dt_stepper_held(const struct dt_params *params, const struct dt_stepper_config *config)
{
    struct dt_buckets_config buckets = buckets_config(params, config);
    return dt_buckets_held(&buckets, config->comm->info.size);
}

dt_status dt_stepper_plan(const struct dt_backend *backend, const struct dt_params *params,
                          const struct dt_array_list *arrays,
                          const struct dt_stepper_config *config, struct dt_memory_plan *plan)
{
    int64_t scratch;
    DT_TRY(dt_optimizer_scratch(backend, params, config->storage, &config->optimizer, &scratch));
    struct dt_buckets_config buckets = buckets_config(params, config);
    int n_ranks = config->comm->info.size;
    int64_t held = dt_stepper_held(params, config);
    if (params->ring.n > 0)
        dt_memory_plan_add(plan, "own gradients", held * (int64_t)sizeof(float), false);
    if (params->ring_weights)
        dt_memory_plan_add(
            plan, "own weights",
            held * (int64_t)(sizeof(float) + (config->storage == DT_BF16 ? sizeof(dt_bf16) : 0)),
            false);
    dt_memory_plan_add(plan, "optimizer states",
                       (dt_optimizer_elements(params, held, &config->optimizer) -
                        (params->ring_weights ? held : 0)) *
                           (int64_t)sizeof(float),
                       false);
    dt_memory_plan_add(plan, "muon", scratch, false);
    dt_memory_plan_add(plan, "input", dt_input_bytes(arrays, &config->batch), false);
    dt_memory_plan_add(plan, "device buckets", dt_buckets_bytes(&buckets, n_ranks), false);
    dt_memory_plan_add(plan, "host buckets", dt_buckets_host_bytes(&buckets, backend, n_ranks),
                       true);
    dt_memory_plan_add(
        plan, "gradient sums",
        dt_micro_tree_bytes(params->ring.n > 0 ? held : params->elements, leaves(config)) +
            dt_buckets_tree_bytes(&buckets, n_ranks),
        false);
    return DT_OK;
}

// Whether gradients are in a ring: each micro-batch sends its gradients, which are added to those
// of this rank's pieces.
static bool has_ring(const struct dt_stepper *s)
{
    return dt_model_params(s->model)->ring.n > 0;
}

// Whether the weights that a pass reads are in a ring too, so that each pass gathers them.
static bool weights_are_spread(const struct dt_stepper *s)
{
    return dt_model_params(s->model)->ring_weights;
}

static dt_status create_optimizer_and_buckets(struct dt_stepper *s)
{
    const struct dt_params *params = dt_model_params(s->model);
    struct dt_buckets_config config = buckets_config(params, &s->config);
    struct dt_comm *comm = s->config.comm;
    int64_t *ends;
    dt_status status;
    DT_TRY(DT_NEW(&ends, params->n, "%d rows", params->n));
    DT_TRY_GOTO(status, out, DT_NEW(&s->masters.spans, params->n, "%d rows", params->n));
    for (int i = 0; i < params->n; i++) {
        ends[i] = row_end(params, i);
        if (!is_gathered_as_master(params, &s->config, i))
            continue;
        bool joins = i > 0 && is_gathered_as_master(params, &s->config, i - 1);
        struct dt_span *span = &s->masters.spans[joins ? s->masters.n - 1 : s->masters.n++];
        *span = (struct dt_span){joins ? span->first : params->rows[i].offset, ends[i]};
    }
    s->masters.elements = config.masters.elements;
    config.masters = s->masters;
    config.row_ends = ends;
    DT_TRY_GOTO(status, out, dt_buckets_pieces(&config, s->backend, &comm->info, &s->pieces));
    DT_TRY_GOTO(
        status, out,
        dt_optimizer_create(s->backend, s->model, &s->config.optimizer, &s->pieces, &s->optimizer));
    config.gradients = dt_model_gradients(s->model);
    config.weights = dt_model_weights(s->model);
    config.copies = dt_model_weights_bf16(s->model);
    config.own = s->optimizer.gradients;
    config.own_weights = dt_optimizer_state(&s->optimizer.states, "weights");
    config.own_copies = s->optimizer.copies;
    config.sums = (double *)s->optimizer.sum;
    config.norms = s->optimizer.norms;
    config.stream = s->stream;
    DT_TRY_GOTO(status, out, dt_buckets_create(comm, s->backend, &config, &s->buckets));
    if (s->config.shard && comm->info.size > 1)
        s->optimizer.buckets = s->buckets;
out:
    free(ends);
    return status;
}

dt_status dt_stepper_create(const struct dt_backend *backend, struct dt_model *model,
                            const struct dt_stepper_config *config, struct dt_stepper **stepper)
{
    struct dt_stepper *s;
    dt_status status;
    DT_TRY(DT_NEW(&s, 1, "a training step"));
    *s = (struct dt_stepper){.config = *config, .backend = backend, .model = model};
    DT_TRY_GOTO(status, fail, dt_stream_create(backend, &s->stream));
    DT_TRY_GOTO(status, fail, create_optimizer_and_buckets(s));
    DT_TRY_GOTO(status, fail,
                dt_input_create(backend, dt_model_arrays(model), &config->batch, &s->input));
    if (config->carry_steps > 0)
        DT_TRY_GOTO(
            status, fail,
            dt_carry_create(backend, model, &config->batch, &config->comm->info, &s->carry));
    DT_TRY_GOTO(status, fail, dt_segments_create(backend, model, &config->batch, &s->segments));
    struct dt_tree_sum own = {s->optimizer.gradients, s->optimizer.sum};
    if (!has_ring(s))
        own.gradients = dt_model_gradients(model);
    if (config->order == DT_SUM_TREE && s->segments.step > 1) {
        s->segments.sums[0] = (struct dt_segment_sum){
            own.gradients, dt_model_params(model)->elements * (int64_t)sizeof(float)};
        s->segments.sums[1] = (struct dt_segment_sum){own.sum, sizeof *own.sum};
    }
    DT_TRY_GOTO(
        status, fail,
        dt_micro_tree_create(backend, &own,
                             has_ring(s) ? s->pieces.elements : dt_model_params(model)->elements,
                             leaves(config), &s->tree));
    DT_TRY_GOTO(status, fail, dt_alloc(backend, MARKS * (int64_t)sizeof *s->marks, &s->marks));
    DT_TRY_GOTO(
        status, fail,
        dt_alloc_host(backend, DT_STEPS_IN_FLIGHT * (int64_t)sizeof *s->reports, &s->reports));
    if (dt_model_shape(model)->losses) {
        int64_t n = config->batch.sequences * config->batch.length * DT_STEPS_IN_FLIGHT;
        DT_TRY_GOTO(status, fail,
                    dt_alloc_host(backend, n * (int64_t)sizeof *s->losses, &s->losses));
        DT_TRY_GOTO(status, fail,
                    dt_alloc_host(backend, n * (int64_t)sizeof *s->labels, &s->labels));
        DT_TRY_GOTO(status, fail,
                    DT_NEW(&s->slots, config->batch.sequences, "losses of sequences"));
    }
    for (int i = 0; i < DT_STEPS_IN_FLIGHT; i++)
        DT_TRY_GOTO(status, fail, dt_event_create(backend, &s->flights[i].done));
    *stepper = s;
    return DT_OK;
fail:
    dt_stepper_destroy(s);
    return status;
}

dt_status dt_stepper_connect(struct dt_stepper *s)
{
    DT_TRY(dt_buckets_connect(s->buckets));
    return dt_segments_connect(&s->segments, dt_buckets_device_comm(s->buckets));
}

void dt_stepper_destroy(struct dt_stepper *s)
{
    if (!s)
        return;
    const struct dt_backend *backend = s->backend;
    dt_stream_settle(backend, s->stream); // steps may be in flight if the run ends on an error
    for (int i = 0; i < DT_VARIANTS; i++)
        if (s->variants[i].graph)
            dt_graph_destroy(backend, s->variants[i].graph);
    dt_buckets_destroy(s->buckets);
    dt_micro_tree_destroy(&s->tree);
    dt_input_destroy(&s->input);
    dt_carry_destroy(&s->carry);
    dt_segments_destroy(&s->segments);
    dt_optimizer_destroy(&s->optimizer);
    free(s->pieces.spans);
    free(s->masters.spans);
    for (int i = 0; i < DT_STEPS_IN_FLIGHT; i++)
        dt_event_destroy(backend, s->flights[i].done);
    dt_free_host(backend, s->reports);
    dt_free_host(backend, s->losses);
    dt_free_host(backend, s->labels);
    free(s->slots);
    dt_free(backend, s->marks);
    dt_stream_destroy(backend, s->stream);
    free(s);
}

int dt_stepper_depth(const struct dt_stepper *s)
{
    return s->backend->table->unified ? 1 : DT_STEPS_IN_FLIGHT;
}

int dt_stepper_in_flight(const struct dt_stepper *s)
{
    return (int)(s->launched - s->collected);
}

void dt_stepper_hold(struct dt_stepper *s, struct dt_event *event)
{
    s->hold = event;
}

static void say(const struct dt_stepper *s, const char *phase)
{
    dt_comm_progress(s->config.comm, s->step, phase);
}

static dt_status mark(struct dt_stepper *s, enum mark mark)
{
    struct dt_stamp_args args = {.time = &s->marks[mark]};
    return dt_stamp(s->backend, &args, s->stream);
}

// Called when the last micro-batch, or with a ring any, has finished the gradient of a row: adds
// the gradients of other micro-batches, unless the ring's sums are added later, and passes the row
// to its bucket.
static dt_status row_ready(void *stepper, int64_t row)
{
    struct dt_stepper *s = stepper;
    const struct dt_params *params = dt_model_params(s->model);
    if (!has_ring(s))
        DT_TRY(dt_micro_tree_finish(&s->tree, params->rows[row].offset, row_end(params, row),
                                    s->stream));
    return dt_buckets_ready(s->buckets, row);
}

// Clears the gradients of a unit's rows, from this one on, that backward does not write: padding,
// and rows that are not trained. The slot may have another unit's gradients.
static dt_status clear_unwritten(struct dt_stepper *s, int64_t row)
{
    const struct dt_params *params = dt_model_params(s->model);
    const struct dt_unit *unit =
        &params->ring.units[dt_ring_unit(&params->ring, params->rows[row].offset)];
    for (; row < params->n && params->rows[row].offset < unit->end; row++) {
        const struct dt_param *param = &params->rows[row];
        int64_t written = param->frozen ? 0 : param->count;
        int64_t rest = row_end(params, row) - param->offset - written;
        if (rest > 0)
            DT_TRY(dt_fill(s->backend, dt_model_gradient(s->model, (int)row) + written, 0,
                           rest * (int64_t)sizeof(float), s->stream));
    }
    return DT_OK;
}

// Called before forward reads the weights of these rows, and before backward writes their
// gradients. The first wait for weights is measured; later ones should find them there.
static dt_status part_begins(void *stepper, int64_t row, bool backward)
{
    struct dt_stepper *s = stepper;
    bool measured = s->waits, spread = weights_are_spread(s);
    if (row == dt_model_params(s->model)->n || (backward && !has_ring(s)))
        return DT_OK;
    if (backward) {
        if (spread)
            DT_TRY(dt_buckets_read(s->buckets, row, true));
        DT_TRY(dt_buckets_enter(s->buckets, row));
        return clear_unwritten(s, row);
    }
    s->waits = false;
    if (measured)
        DT_TRY(mark(s, WANTED));
    DT_TRY(spread ? dt_buckets_read(s->buckets, row, false) : dt_buckets_need(s->buckets, row));
    return measured ? mark(s, ARRIVED) : DT_OK;
}

dt_status dt_stepper_weights_changed(struct dt_stepper *s)
{
    s->incomplete |= weights_are_spread(s);
    return dt_optimizer_refresh(&s->optimizer, s->stream);
}

dt_status dt_stepper_begin_pass(struct dt_stepper *s, struct dt_pass *pass)
{
    bool changed = s->incomplete;
    if (!weights_are_spread(s))
        return DT_OK;
    pass->part_begins = part_begins;
    pass->context = s;
    s->incomplete = s->waits = false;
    return dt_buckets_begin_pass(s->buckets, changed);
}

dt_status dt_stepper_complete(struct dt_stepper *s)
{
    if (!s->stale)
        return DT_OK;
    s->stale = s->incomplete = false;
    DT_TRY(dt_buckets_gather_masters(s->buckets));
    return dt_stream_sync(s->backend, s->stream);
}

// Backward through this rank's first segment, where the segment before adds the sums to its own:
// zeros stand for them here.
static dt_status hand_on(struct dt_stepper *s, const struct dt_pass *part)
{
    DT_TRY(dt_model_backward(s->model, part));
    DT_TRY(dt_segments_hand_on(&s->segments, part));
    DT_TRY(dt_segments_settle(&s->segments));
    for (int i = 0; i < 2; i++)
        DT_TRY(
            dt_fill(s->backend, s->segments.sums[i].data, 0, s->segments.sums[i].bytes, s->stream));
    return DT_OK;
}

static dt_status rows_ready(struct dt_stepper *s)
{
    for (int64_t row = 0; row < dt_model_params(s->model)->n; row++)
        DT_TRY(row_ready(s, row));
    return DT_OK;
}

// Runs one micro-batch. Gradients are accumulated over segments and micro-batches, by the model or
// by a tree. The last micro-batch sends them as they become ready, and updates the weights. With a
// ring each micro-batch sends its gradients, segment by segment unless it runs part by part, and
// their sums over ranks are accumulated.
static dt_status forward_backward(struct dt_stepper *s, const struct dt_model_input *input,
                                  int variant)
{
    const double tokens = (double)s->config.tokens;
    const int64_t n = s->segments.n;
    const bool first = variant & DT_VARIANT_FIRST, last = variant & DT_VARIANT_LAST,
               gathers = variant & DT_VARIANT_GATHER, ring = has_ring(s), sends = last || ring,
               each = ring && !s->segments.by_part, spread = weights_are_spread(s),
               tree = s->tree.levels > 0;
    const struct dt_pass pass = {.input = *input,
                                 .before = s->carry.before,
                                 .after = s->carry.after,
                                 .accumulate = !first && !ring,
                                 .grad_ready = sends ? row_ready : NULL,
                                 .part_begins = gathers || ring ? part_begins : NULL,
                                 .context = s,
                                 .stream = s->stream};
    struct dt_pass part;
    say(s, "forward");
    s->waits = gathers;
    if (spread)
        DT_TRY(dt_buckets_begin_pass(s->buckets, gathers));
    else if (gathers)
        DT_TRY(dt_buckets_gather(s->buckets));
    DT_TRY(mark(s, LAST_BEGIN));
    for (int64_t i = 0; i < n; i++)
        DT_TRY(dt_segments_forward(&s->segments, &pass, i, &part));
    if (gathers && !spread)
        DT_TRY(dt_buckets_gathered(s->buckets));
    DT_TRY(dt_segments_loss(&s->segments, &part, 1 / tokens, s->optimizer.sum));
    say(s, "backward");
    DT_TRY(mark(s, LAST_FORWARD_DONE));
    for (int64_t i = n - 1; i > 0; i--) {
        dt_buckets_add(s->buckets, !first || i < n - 1);
        DT_TRY(dt_segments_backward(&s->segments, &pass, i, &part));
        if (each)
            DT_TRY(dt_buckets_wait(s->buckets));
        DT_TRY(dt_segments_hand_on(&s->segments, &part));
        DT_TRY(dt_segments_again(&s->segments, &pass, i - 1, 1 / tokens, s->optimizer.sum, &part));
    }
    dt_buckets_add(s->buckets, !first || (each && n > 1));
    if (dt_segments_keep_none(&s->segments))
        DT_TRY(hand_on(s, &part));
    if (last && !ring)
        DT_TRY(dt_micro_tree_finish_sums(&s->tree, s->stream));
    if (last || (ring && tree)) // otherwise accumulate until then
        DT_TRY(dt_buckets_sums_ready(s->buckets));
    if (!dt_segments_keep_none(&s->segments))
        DT_TRY(dt_segments_backward(&s->segments, &pass, 0, &part));
    else if (last)
        DT_TRY(rows_ready(s));
    DT_TRY(dt_segments_settle(&s->segments));
    if (!sends)
        return DT_OK;
    say(s, "summing gradients");
    DT_TRY(mark(s, BACKWARD_DONE));
    DT_TRY(dt_buckets_wait(s->buckets));
    if (!last)
        return DT_OK;
    if (ring) {
        DT_TRY(dt_micro_tree_finish(&s->tree, 0, s->tree.elements, s->stream));
        DT_TRY(dt_micro_tree_finish_sums(&s->tree, s->stream));
    }
    DT_TRY(mark(s, SUMMED));
    dt_trace_phase("optimizer");
    DT_TRY(dt_optimizer_control(&s->optimizer, tokens, s->stream));
    if (s->hold)
        DT_TRY(dt_stream_wait(s->backend, s->stream, s->hold));
    s->hold = NULL;
    DT_TRY(dt_optimizer_update(&s->optimizer, s->stream));
    DT_TRY(mark(s, UPDATED));
    if (!s->optimizer.buckets || s->config.between_devices || spread)
        return DT_OK;
    say(s, "gathering weights");
    DT_TRY(dt_buckets_gather(s->buckets));
    DT_TRY(dt_buckets_gathered(s->buckets));
    return mark(s, GATHERED);
}

// Runs a micro-batch as a graph, if the device has graphs. A variant is captured the second time
// (the first time libraries allocate and load, which cannot be captured), then launched as a whole.
// A micro-batch whose gradients are sent through the host is not captured, nor is one with messages
// to ranks that share its windows: branches of a graph need not run side by side, and a message
// would then hold up what its receiver waits for.
static dt_status run_micro_batch(struct dt_stepper *s, const struct dt_model_input *input,
                                 int variant, int *graphs)
{
    struct dt_variant *known = &s->variants[variant];
    bool sends = (variant & DT_VARIANT_LAST) || has_ring(s);
    bool captures = s->config.graphs && !s->timing && s->backend->table->graphs &&
                    !(s->hold && (variant & DT_VARIANT_LAST)) && s->segments.step == 1 &&
                    (!sends || dt_buckets_can_be_captured(s->buckets));
    if (!captures || !known->has_run) {
        known->has_run = true;
        return forward_backward(s, input, variant);
    }
    if (!known->graph) {
        DT_TRY(dt_capture_begin(s->backend, s->stream));
        dt_status status = forward_backward(s, input, variant);
        if (status != DT_OK)
            dt_capture_cancel(s->backend, s->stream);
        DT_TRY_NOTE(status, "capturing a step as a graph (run.cuda_graph = false avoids it)");
        DT_TRY(dt_capture_end(s->backend, s->stream, &known->graph));
    }
    ++*graphs;
    return dt_graph_launch(s->backend, known->graph, s->stream);
}

static int64_t positions(const struct dt_stepper *s)
{
    return s->config.batch.sequences * s->config.batch.length;
}

// Copies the losses of micro-batch i of a step to the host.
static dt_status copy_losses(struct dt_stepper *s, const struct dt_model_input *input, int64_t i,
                             struct dt_flight *flight)
{
    int64_t n = s->config.batch.micro * s->config.batch.length;
    int64_t at = (flight - s->flights) * positions(s) + i * n;
    struct dt_row_losses rows;
    flight->losses = s->losses && dt_segments_row_losses(&s->segments, input, &rows);
    if (!flight->losses)
        return DT_OK;
    DT_TRY(dt_to_host(s->backend, s->losses + at, rows.losses, n * (int64_t)sizeof *rows.losses,
                      s->stream));
    return dt_to_host(s->backend, s->labels + at, rows.labels, n * (int64_t)sizeof *rows.labels,
                      s->stream);
}

// Sums the losses of each sequence in order.
static void add_losses(struct dt_stepper *s, const struct dt_flight *flight)
{
    int64_t length = s->config.batch.length, at = (flight - s->flights) * positions(s);
    for (int64_t k = 0; k < s->config.batch.sequences; k++) {
        struct dt_loss_part *slot = &s->slots[k];
        *slot = (struct dt_loss_part){0};
        for (int64_t i = 0; i < length; i++, at++) {
            if (!dt_segments_own(&s->segments, i))
                continue;
            slot->loss += (double)s->losses[at];
            slot->counted += s->labels[at] != DT_IGNORED;
        }
    }
}

static dt_status launch(struct dt_stepper *s, struct dt_loader *loader, int64_t step, double lr)
{
    struct dt_flight *flight = &s->flights[s->launched % DT_STEPS_IN_FLIGHT];
    struct dt_step_report *report = &s->reports[s->launched % DT_STEPS_IN_FLIGHT];
    const bool tree = s->config.order == DT_SUM_TREE;
    int64_t n;
    s->step = step;
    flight->start = dt_seconds();
    flight->graphs = 0;
    flight->lr = lr;
    report->lr = (float)lr;

    say(s, "reading data");
    DT_TRY(dt_input_next(&s->input, loader, s->stream, &n, &flight->data_wait_ms));
    DT_TRY(mark(s, BEGIN));
    DT_TRY(dt_to_device(s->backend, s->optimizer.lr, &report->lr, sizeof report->lr, s->stream));
    if (s->carry.backend && (step - 1) % s->config.carry_steps == 0)
        DT_TRY(dt_carry_clear(&s->carry, s->carry.kept, s->stream));

    for (int64_t i = 0; i < n; i++) {
        struct dt_model_input input;
        const bool first = i == 0 || tree, last = i == n - 1; // first: overwrite
        DT_TRY(dt_input_micro_batch(&s->input, s->stream, &input));
        if (first)
            DT_TRY(dt_fill(s->backend, s->optimizer.sum, 0, sizeof *s->optimizer.sum, s->stream));
        const int variant = (first ? DT_VARIANT_FIRST : 0) | (last ? DT_VARIANT_LAST : 0) |
                            (i == 0 && s->incomplete ? DT_VARIANT_GATHER : 0);
        DT_TRY(dt_carry_load(&s->carry, s->carry.kept, i, s->stream));
        DT_TRY(run_micro_batch(s, &input, variant, &flight->graphs));
        DT_TRY(copy_losses(s, &input, i, flight));
        if (tree && !last)
            DT_TRY(dt_micro_tree_carry(&s->tree, i, s->stream));
        DT_TRY(dt_carry_store(&s->carry, s->carry.next, i, s->stream));
    }
    s->incomplete = s->optimizer.buckets && (s->config.between_devices || weights_are_spread(s));
    s->stale = s->optimizer.buckets && !weights_are_spread(s) &&
               (s->incomplete || s->config.storage == DT_BF16);
    DT_TRY(dt_carry_commit(&s->carry, s->optimizer.control, s->stream));

    DT_TRY(mark(s, END));
    DT_TRY(dt_to_host(s->backend, &report->control, s->optimizer.control, sizeof report->control,
                      s->stream));
    DT_TRY(dt_to_host(s->backend, &report->sum, s->optimizer.sum, sizeof report->sum, s->stream));
    DT_TRY(dt_to_host(s->backend, report->marks, s->marks, sizeof report->marks, s->stream));
    if (s->timing)
        DT_TRY(dt_op_times_stop(s->config.times, s->stream));
    return dt_event_record(s->backend, flight->done, s->stream);
}

dt_status dt_stepper_launch(struct dt_stepper *s, struct dt_loader *loader, int64_t step, double lr)
{
    // Times the ops of this step if it is due. Only one such step is in flight: a traced step waits
    // until the previous one is collected.
    bool traced = dt_trace_is_on() & DT_TRACE_KEEPS || dt_op_times_has_listener(s->config.times);
    s->timing = s->config.times &&
                (traced || s->backend->table->unified || s->launched % STEPS_PER_TIMED == 1);
    s->flights[s->launched % DT_STEPS_IN_FLIGHT].timed = s->timing;
    if (s->timing)
        dt_op_times_start(s->config.times, DT_LANE_OP);
    DT_TRY(launch(s, loader, step, lr));
    s->launched++;
    return DT_OK;
}

// Adds spans of the device's work, by its marks.
static void trace_device(const struct dt_stepper *s, const uint64_t *marks)
{
    static const char *const phases[MARKS] = {
        [BEGIN] = "between steps",        [WANTED] = "input",
        [ARRIVED] = "gathering weights",  [LAST_BEGIN] = "earlier micro-batches",
        [LAST_FORWARD_DONE] = "forward",  [BACKWARD_DONE] = "backward",
        [SUMMED] = "summing gradients",   [UPDATED] = "optimizer",
        [GATHERED] = "gathering weights", [END] = "end of step",
    };
    uint64_t last = s->last_end ? s->last_end : marks[BEGIN];
    for (int i = 0; i < MARKS; i++) {
        if (marks[i] <= last) // not set, or from the first step
            continue;
        dt_trace_add(DT_LANE_DEVICE, phases[i], dt_op_times_host(s->config.times, last),
                     dt_op_times_host(s->config.times, marks[i]), &(struct dt_trace_work){0});
        last = marks[i];
    }
}

static double milliseconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * 1e-6 : 0;
}

dt_status dt_stepper_collect(struct dt_stepper *s, struct dt_step_result *result)
{
    const struct dt_flight *flight = &s->flights[s->collected % DT_STEPS_IN_FLIGHT];
    const struct dt_step_report *report = &s->reports[s->collected % DT_STEPS_IN_FLIGHT];
    const uint64_t *marks = report->marks;
    if (s->collected == s->launched)
        return DT_FAIL(DT_MACHINE, NULL, "no step is in flight");
    say(s, "waiting for the device");
    double waiting = dt_seconds();
    DT_TRY(dt_event_sync(s->backend, flight->done));
    double now = dt_seconds();
    *result = (struct dt_step_result){
        .control = report->control,
        .sum = report->sum,
        .lr = flight->lr,
        .seconds = now - fmax(flight->start, s->last_collect),
        .data_wait_ms = flight->data_wait_ms,
        .host_wait_ms = (now - waiting) * 1e3,
        .comm_wait_ms =
            milliseconds(marks[BACKWARD_DONE], marks[SUMMED]) +
            milliseconds(marks[UPDATED], marks[GATHERED]) +
            (marks[WANTED] > marks[BEGIN] ? milliseconds(marks[WANTED], marks[ARRIVED]) : 0),
        .idle_ms = s->last_end ? milliseconds(s->last_end, marks[BEGIN]) : 0,
        .graphs = flight->graphs,
        .timed = flight->timed};
    if (flight->losses) {
        add_losses(s, flight);
        result->slots = s->slots;
    }
    result->control.loss = fabs(result->control.loss); // clear the sign of a NaN
    result->control.grad_norm = fabs(result->control.grad_norm);
    if (flight->timed)
        dt_op_times_collect(s->config.times);
    if (s->config.times && !s->backend->table->unified && dt_trace_is_on())
        trace_device(s, marks);
    s->last_end = marks[END];
    s->last_collect = now;
    s->collected++;
    return DT_OK;
}
