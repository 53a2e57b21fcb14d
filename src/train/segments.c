// Cuts passes over windows into passes over segments.
#include "train/segments.h"

#include "base/memory.h"

#include <stdlib.h>

static int64_t ranks_of(const struct dt_input_config *batch)
{
    return dt_max_i64(batch->context, 1);
}

static int64_t segments_of(const struct dt_input_config *batch)
{
    return batch->segment > 0 ? dt_ceil_div(batch->length, batch->segment) : 1;
}

// How many states before its segments a rank keeps.
static int64_t borders_of(const struct dt_model_shape *shape, const struct dt_input_config *batch)
{
    int64_t ranks = ranks_of(batch), n = segments_of(batch) / ranks - (ranks == 1);
    return shape->training ? n : dt_min_i64(n, 2);
}

// How many directions have states of their own: part by part both do.
static int directions_of(const struct dt_model_shape *shape)
{
    return shape->window > 0 ? 2 : 1;
}

// All states: those of each direction; in a group two more, which are sent.
static int64_t states_of(const struct dt_model_shape *shape, const struct dt_input_config *batch)
{
    return borders_of(shape, batch) * directions_of(shape) + (ranks_of(batch) > 1 ? 2 : 0);
}

dt_status dt_segments_plan(const struct dt_model_config *config, const struct dt_array_list *arrays,
                           const struct dt_model_shape *shape, const struct dt_input_config *batch,
                           struct dt_memory_plan *plan)
{
    int64_t n = segments_of(batch), state, gradient, input = 0;
    if (n == 1)
        return DT_OK;
    DT_TRY(dt_model_state_bytes(config, batch->micro, &state));
    DT_TRY(dt_model_state_gradient_bytes(config, batch->micro, &gradient));
    for (int i = 0; i < arrays->n && batch->micro > 1; i++)
        input += dt_array_bytes(&arrays->arrays[i], batch->micro * batch->segment);
    dt_memory_plan_add(plan, "border states",
                       states_of(shape, batch) * state + (shape->training ? 2 * gradient : 0),
                       false);
    dt_memory_plan_add(plan, "segment input", input, false);
    if (shape->losses)
        dt_memory_plan_add(plan, "losses of positions",
                           batch->micro * batch->length * (int64_t)(sizeof(float) + 1), false);
    return DT_OK;
}

dt_status dt_segments_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_input_config *batch, struct dt_segments *s)
{
    const struct dt_model_shape *shape = dt_model_shape(model);
    const struct dt_array_list *arrays = dt_model_arrays(model);
    int64_t n = segments_of(batch), window = batch->micro * batch->length,
            states = states_of(shape, batch);
    *s = (struct dt_segments){.backend = backend,
                              .model = model,
                              .config = *batch,
                              .by_part = shape->window > 0,
                              .n = n / ranks_of(batch),
                              .step = ranks_of(batch)};
    if (n == 1)
        return DT_OK;
    if (s->step > 1) {
        s->place = batch->comm->info.rank % s->step;
        dt_relay_create(batch->comm, s->step, s->n, &s->relay);
    }
    s->kept = borders_of(shape, batch);
    DT_TRY(DT_NEW(&s->states, states, "%lld states", (long long)states));
    for (int64_t i = 0; i < states; i++)
        DT_TRY(dt_model_state_create(model, batch->micro, &s->states[i]));
    s->sent = s->states + s->kept * directions_of(shape);
    for (int i = 0; i < 2 && shape->training; i++)
        DT_TRY(dt_model_state_create_gradient(model, batch->micro, &s->gradients[i]));
    for (int i = 0; i < arrays->n && batch->micro > 1; i++)
        DT_TRY(dt_alloc(backend, dt_array_bytes(&arrays->arrays[i], batch->micro * batch->segment),
                        &s->arrays[i]));
    if (!shape->losses)
        return DT_OK;
    DT_TRY(dt_alloc(backend, window * (int64_t)sizeof *s->losses, &s->losses));
    return dt_alloc(backend, window, &s->right);
}

dt_status dt_segments_connect(struct dt_segments *s, struct dt_device_comm *device_comm)
{
    return s->step > 1 && device_comm
               ? dt_relay_connect(&s->relay, s->backend, device_comm, s->sums[0].data != NULL)
               : DT_OK;
}

void dt_segments_destroy(struct dt_segments *s)
{
    int64_t states = s->states ? states_of(dt_model_shape(s->model), &s->config) : 0;
    for (int64_t i = 0; i < states; i++)
        dt_model_state_destroy(s->model, s->states[i]);
    dt_relay_destroy(&s->relay);
    for (int i = 0; i < 2; i++)
        dt_model_state_destroy(s->model, s->gradients[i]);
    for (int i = 0; i < DT_BATCH_ARRAYS && s->backend; i++)
        dt_free(s->backend, s->arrays[i]);
    if (s->backend) {
        dt_free(s->backend, s->losses);
        dt_free(s->backend, s->right);
    }
    free(s->states);
    *s = (struct dt_segments){0};
}

// Copies `length` bytes for each sequence, which begin `to_step` and `from_step` bytes apart.
static dt_status copy(const struct dt_segments *s, const struct dt_pass *part, char *to,
                      int64_t to_step, const char *from, int64_t from_step, int64_t length)
{
    for (int64_t b = 0; b < part->input.sequences; b++)
        DT_TRY(dt_copy(s->backend, to + b * to_step, from + b * from_step, length, part->stream));
    return DT_OK;
}

// Copies an array of a segment, of `each` bytes a position, to its place in one of the window.
static dt_status keep(const struct dt_segments *s, const struct dt_pass *part, void *window,
                      const void *segment, int64_t each)
{
    int64_t length = part->input.length * each;
    return copy(s, part, (char *)window + part->at * each, part->window->length * each, segment,
                length, length);
}

dt_status dt_segments_settle(struct dt_segments *s)
{
    for (int side = 0; side < 2; side++)
        DT_TRY(dt_relay_settle(&s->relay, side));
    return DT_OK;
}

bool dt_segments_own(const struct dt_segments *s, int64_t t)
{
    return s->step == 1 || t / s->config.segment % s->step == s->place;
}

bool dt_segments_keep_none(const struct dt_segments *s)
{
    return s->sums[0].data && s->place > 0;
}

// Moves the sums over segments between the one that begins at `border` and the one before.
static dt_status move_sums(struct dt_segments *s, bool sends, int64_t border)
{
    for (uint32_t i = 0; i < 2 && s->sums[i].data; i++)
        DT_TRY(dt_relay_sum(&s->relay, sends, (uint32_t)border * 2 + i, s->sums[i].data,
                            s->sums[i].bytes));
    return DT_OK;
}

dt_status dt_segments_hand_on(struct dt_segments *s, const struct dt_pass *part)
{
    return part->at > 0 ? move_sums(s, true, part->at) : DT_OK;
}

// The input of a segment. That of a single sequence needs no copy.
static dt_status input_of(struct dt_segments *s, const struct dt_pass *whole, struct dt_pass *part)
{
    const struct dt_array_list *arrays = dt_model_arrays(s->model);
    for (int n = 0; n < arrays->n; n++) {
        const int64_t each = dt_array_bytes(&arrays->arrays[n], 1),
                      length = part->input.length * each;
        const char *from = whole->input.arrays[n];
        if (!from)
            continue;
        from += part->at * each;
        part->input.arrays[n] = s->config.micro > 1 ? s->arrays[n] : (const void *)from;
        if (s->config.micro > 1)
            DT_TRY(copy(s, part, s->arrays[n], length, from, whole->input.length * each, length));
    }
    return DT_OK;
}

// The states of segment i, this rank's k-th, in a sweep: it comes from one border and goes to the
// other.
static void states_for(const struct dt_segments *s, int64_t i, int64_t k, int sweep,
                       struct dt_pass *part)
{
    const int64_t borders = s->n * s->step - 1, from = sweep == 0 ? i - 1 : i,
                  to = sweep == 0 ? i : i - 1;
    const bool alone = s->step == 1;
    struct dt_model_state **states = s->states + sweep * s->kept;
    if (from >= 0 && from < borders) {
        part->before = states[(alone ? from : k) % s->kept];
        part->dbefore = s->gradients[from % 2];
    }
    if (to >= 0 && to < borders) {
        part->after = alone ? states[to % s->kept] : s->sent[k % 2];
        part->dafter = s->gradients[to % 2];
    }
}

// Whether the gradients of each segment are sent, in a ring; otherwise those of all are added up.
static bool each_sends(const struct dt_segments *s)
{
    return dt_model_params(s->model)->ring.n > 0 && !s->by_part;
}

static dt_status pass_over(struct dt_segments *s, const struct dt_pass *whole, int64_t k, int sweep,
                           struct dt_pass *part)
{
    const int64_t i = s->place + k * s->step, all = s->n * s->step; // segments of the window
    const bool sends = each_sends(s);
    *part = *whole;
    if (all == 1)
        return DT_OK;
    if (s->step > 1) {
        s->relay.stream = whole->stream;
        DT_TRY(dt_relay_settle(&s->relay, (int)(k % 2)));
        part->relay = part->gradient_relay = &s->relay.relay;
    }
    part->window = &whole->input;
    part->at = i * s->config.segment;
    part->own_at = k * s->config.segment;
    part->input.length = dt_min_i64(s->config.segment, whole->input.length - part->at);
    DT_TRY(input_of(s, whole, part));
    states_for(s, i, k, sweep, part);
    if ((k > 0 || dt_segments_keep_none(s)) && !sends)
        part->grad_ready = NULL;
    if (k > 0 && !sends)
        part->part_begins = NULL;
    if (k < s->n - 1 || (s->sums[0].data && i < all - 1))
        part->accumulate = !sends;
    return DT_OK;
}

// Runs all sweeps of a part over all segments, forward or backward.
static dt_status run_part(struct dt_segments *s, const struct dt_pass *whole, int64_t of,
                          bool backward)
{
    const int sweeps = dt_model_sweeps(s->model, of);
    for (int64_t turn = 0; turn < sweeps * s->n; turn++) {
        const int sweep = (int)(turn / s->n);
        const int64_t i = turn % s->n, k = backward == (sweep == 0) ? s->n - 1 - i : i;
        struct dt_pass part;
        if (backward)
            DT_TRY(dt_segments_settle(s));
        DT_TRY(pass_over(s, whole, k, sweep, &part));
        part.part_begins = turn == 0 ? whole->part_begins : NULL;
        part.grad_ready = turn == sweeps * s->n - 1 ? whole->grad_ready : NULL;
        part.accumulate = whole->accumulate || i > 0;
        DT_TRY((backward ? dt_model_part_backward : dt_model_part_forward)(s->model, &part, of,
                                                                           sweep));
    }
    return DT_OK;
}

static int64_t head_of(const struct dt_segments *s)
{
    return dt_model_parts(s->model) - 1;
}

// Forward through a segment; part by part only the head is left.
static dt_status run_forward(const struct dt_segments *s, const struct dt_pass *part)
{
    return s->by_part ? dt_model_part_forward(s->model, part, head_of(s), 0)
                      : dt_model_forward(s->model, part);
}

dt_status dt_segments_pass(struct dt_segments *s, const struct dt_pass *whole, int64_t k,
                           struct dt_pass *part)
{
    return pass_over(s, whole, k, 0, part);
}

dt_status dt_segments_forward(struct dt_segments *s, const struct dt_pass *whole, int64_t k,
                              struct dt_pass *part)
{
    s->relay.window += k == 0;
    for (int64_t of = 0; s->by_part && k == 0 && of < head_of(s); of++)
        DT_TRY(run_part(s, whole, of, false));
    DT_TRY(dt_segments_pass(s, whole, k, part));
    return run_forward(s, part);
}

dt_status dt_segments_backward(struct dt_segments *s, const struct dt_pass *whole, int64_t k,
                               const struct dt_pass *part)
{
    if (!s->by_part)
        return dt_model_backward(s->model, part);
    if (k > 0)
        return DT_OK;
    DT_TRY(dt_model_part_backward(s->model, part, head_of(s), 0));
    for (int64_t of = head_of(s) - 1; of >= 0; of--)
        DT_TRY(run_part(s, whole, of, true));
    return DT_OK;
}

dt_status dt_segments_loss(struct dt_segments *s, const struct dt_pass *part, double scale,
                           struct dt_loss_sum *sum)
{
    struct dt_row_losses rows;
    if (scale > 0 && part->window && part->at + part->input.length < part->window->length)
        DT_TRY(move_sums(s, false, part->at + part->input.length));
    DT_TRY(dt_model_loss(s->model, part, scale, sum));
    if (!part->window || !dt_model_row_losses(s->model, &part->input, &rows))
        return DT_OK;
    DT_TRY(keep(s, part, s->losses, rows.losses, sizeof *rows.losses));
    return scale > 0 ? DT_OK : keep(s, part, s->right, rows.right, 1);
}

dt_status dt_segments_again(struct dt_segments *s, const struct dt_pass *whole, int64_t k,
                            double scale, struct dt_loss_sum *sum, struct dt_pass *part)
{
    DT_TRY(pass_over(s, whole, k, 0, part));
    part->relay = NULL; // the states have moved
    part->part_begins = each_sends(s) ? part->part_begins : NULL;
    DT_TRY(run_forward(s, part));
    DT_TRY(dt_segments_settle(s));
    return dt_segments_loss(s, part, scale, sum);
}

bool dt_segments_row_losses(const struct dt_segments *s, const struct dt_model_input *window,
                            struct dt_row_losses *rows)
{
    if (!dt_model_row_losses(s->model, window, rows))
        return false;
    if (s->n * s->step > 1) {
        rows->losses = s->losses;
        rows->right = s->right;
    }
    return true;
}
