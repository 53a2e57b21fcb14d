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

// All states: in a group two more, which are sent.
static int64_t states_of(const struct dt_model_shape *shape, const struct dt_input_config *batch)
{
    return borders_of(shape, batch) + (ranks_of(batch) > 1 ? 2 : 0);
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
    for (int i = 0; i < arrays->n; i++)
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
                             const struct dt_model_shape *shape,
                             const struct dt_input_config *batch, struct dt_segments *s)
{
    const struct dt_array_list *arrays = dt_model_arrays(model);
    int64_t n = segments_of(batch), window = batch->micro * batch->length,
            states = states_of(shape, batch);
    *s = (struct dt_segments){.backend = backend,
                              .model = model,
                              .config = *batch,
                              .shape = *shape,
                              .n = n / ranks_of(batch),
                              .step = ranks_of(batch)};
    if (n == 1)
        return DT_OK;
    if (s->step > 1) {
        s->place = batch->comm->info.rank % s->step;
        dt_relay_create(batch->comm, s->step, &s->relay);
    }
    s->kept = borders_of(shape, batch);
    DT_TRY(DT_NEW(&s->states, states, "%lld states", (long long)states));
    for (int64_t i = 0; i < states; i++)
        DT_TRY(dt_model_state_create(model, batch->micro, &s->states[i]));
    for (int i = 0; i < 2 && shape->training; i++)
        DT_TRY(dt_model_state_create_gradient(model, batch->micro, &s->gradients[i]));
    for (int i = 0; i < arrays->n; i++)
        DT_TRY(dt_alloc(backend, dt_array_bytes(&arrays->arrays[i], batch->micro * batch->segment),
                        &s->arrays[i]));
    if (!shape->losses)
        return DT_OK;
    DT_TRY(dt_alloc(backend, window * (int64_t)sizeof *s->losses, &s->losses));
    return dt_alloc(backend, window, &s->right);
}

void dt_segments_destroy(struct dt_segments *s)
{
    for (int64_t i = 0; s->states && i < states_of(&s->shape, &s->config); i++)
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

static dt_status pass_over(struct dt_segments *s, const struct dt_pass *whole, int64_t k,
                           struct dt_pass *part)
{
    const struct dt_array_list *arrays = dt_model_arrays(s->model);
    const int64_t i = s->place + k * s->step, all = s->n * s->step; // segments of the window
    const int64_t first = i * s->config.segment;
    const bool alone = s->step == 1;
    const bool ring = dt_model_params(s->model)->ring.n > 0; // each segment sends its gradients
    *part = *whole;
    if (all == 1)
        return DT_OK;
    if (!alone) {
        DT_TRY(dt_relay_settle(&s->relay, (int)(k % 2)));
        part->relay = part->gradient_relay = &s->relay.relay;
    }
    part->window = &whole->input;
    part->at = first;
    part->input.length = dt_min_i64(s->config.segment, whole->input.length - first);
    for (int n = 0; n < arrays->n; n++) {
        const char *from = whole->input.arrays[n];
        int64_t each = dt_array_bytes(&arrays->arrays[n], 1), length = part->input.length * each;
        if (!from)
            continue;
        part->input.arrays[n] = s->arrays[n];
        DT_TRY(copy(s, part, s->arrays[n], length, from + first * each, whole->input.length * each,
                    length));
    }
    if (i > 0) {
        part->before = s->states[(alone ? i - 1 : k) % s->kept];
        part->dbefore = s->gradients[(i - 1) % 2];
    }
    if (i < all - 1) {
        part->after = s->states[alone ? i % s->kept : s->kept + k % 2];
        part->dafter = s->gradients[i % 2];
    }
    if ((k > 0 || dt_segments_keep_none(s)) && !ring)
        part->grad_ready = NULL;
    if (k > 0 && !ring)
        part->part_begins = NULL;
    if (k < s->n - 1 || (s->sums[0].data && i < all - 1))
        part->accumulate = !ring;
    return DT_OK;
}

dt_status dt_segments_pass(struct dt_segments *s, const struct dt_pass *whole, int64_t k,
                           struct dt_pass *part)
{
    s->relay.window += k == 0;
    return pass_over(s, whole, k, part);
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
    DT_TRY(pass_over(s, whole, k, part));
    part->relay = NULL; // the states have moved
    DT_TRY(dt_model_forward(s->model, part));
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
