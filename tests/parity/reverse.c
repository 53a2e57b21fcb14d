// Reversal of whole sequences and of a part of them: sequences of one position, shorter than a warp
// and longer than several; without documents, and with documents that start, end and are one
// position long at the edges of a warp; padding in none, some and all of a sequence, in which
// documents start too; masks with holes; widths on both sides of a wide access; padded strides. Two
// reversals restore x.
#include "parity.h"

#include <stdlib.h>
#include <string.h>

struct shape {
    int64_t batch, length, width, gap;
    dt_dtype type;
    enum resets resets;
    bool masked, accumulate;
};

REFERENCE(reverse_rows)
{
    for (int64_t row = 0; row < a->x.rows; row++)
        for (int64_t i = 0; i < a->x.cols; i++) {
            int64_t t = row % a->length;
            double x = get_at(&a->x, row - t + a->length - 1 - t, i);
            set_at(&a->y, row, i, x + (a->accumulate ? get_at(&a->y, row, i) : 0.0));
        }
    return DT_OK;
}

// Follows the contract directly: marks where documents end, then reads the rows from the last one
// on.
REFERENCE(reverse_resets)
{
    bool *ends = calloc((size_t)a->window, sizeof *ends);
    for (int64_t b = 0; b < a->batch; b++) {
        const uint8_t *reset = a->reset ? a->reset + b * a->window : NULL;
        int64_t n = a->window;
        while (a->mask && n > 0 && !a->mask[b * a->window + n - 1])
            n--;
        for (int64_t t = 0; t < a->window; t++)
            ends[t] = t + 1 == n || (reset && t + 1 < a->window && reset[t + 1]);
        for (int64_t t = 0; t < a->length; t++)
            a->y[b * a->length + t] = ends[a->first + a->length - 1 - t];
    }
    free(ends);
    return DT_OK;
}

static void compare_resets(struct parity *p, const struct shape *s, int64_t first, int64_t length)
{
    struct dt_reverse_resets_args args = {.batch = s->batch,
                                          .window = s->length,
                                          .first = first,
                                          .length = length,
                                          .reset = make_reset(s->batch, s->length, s->resets, 32),
                                          .mask = s->masked ? make_mask(s->batch, s->length) : NULL,
                                          .y = guarded(s->batch * length)};
    PARITY(p, reverse_resets, &args);
}

// A copy is exact, and a sum rounds once.
static void compare(struct parity *p, const struct shape *s)
{
    int64_t M = s->batch * s->length, d = s->width, stride = d + s->gap;
    if (!parity_case(p, "reverse: %lld x %lld, width %lld, gap %lld, %s, resets %d%s%s",
                     (long long)s->batch, (long long)s->length, (long long)d, (long long)s->gap,
                     dt_dtype_name(s->type), s->resets, s->masked ? ", mask" : "",
                     s->accumulate ? " +=" : ""))
        return;
    struct dt_view x = normal_view(s->type, M, d, stride, 1.0, 1);
    struct dt_reverse_rows_args rows = {.length = s->length,
                                        .x = x,
                                        .y = s->accumulate
                                                 ? normal_view(s->type, M, d, stride, 1.0, 2)
                                                 : fresh_view(s->type, M, d, stride),
                                        .accumulate = s->accumulate};
    PARITY(p, reverse_rows, &rows, OUT(y, .each = s->accumulate ? 1e-7 : 0));
    compare_resets(p, s, 0, s->length);
    compare_resets(p, s, s->length / 3, (s->length + 1) / 2);
    if (s->accumulate)
        return;
    struct dt_reverse_rows_args back = {
        .length = s->length, .x = rows.y, .y = fresh_view(s->type, M, d, stride)};
    PARITY(p, reverse_rows, &back);
    for (int64_t row = 0; row < M; row++)
        CHECK(memcmp(dt_view_at(&back.y, row, 0), dt_view_at(&x, row, 0),
                     (size_t)(d * dt_dtype_size(s->type))) == 0,
              "%s: row %lld does not come back", p->text, (long long)row);
}

void parity_reverse(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 0, DT_F32, NO_RESETS, false, false},
        {3, 1, 8, 0, DT_BF16, AT_ZERO, true, true},
        {2, 31, 7, 1, DT_F32, IN_A_ROW, false, true},
        {5, 32, 16, 0, DT_BF16, AT_END, true, false},
        {3, 33, 24, 8, DT_F32, AT_CHUNKS, true, false},
        {4, 97, 9, 0, DT_BF16, MANY, true, true},
        {2, 160, 8, 0, DT_F32, MANY, false, false},
        {7, 65, 40, 0, DT_F32, NO_RESETS, true, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (int add = 0; add < 2 && p->model; add++)
        compare(p, &(struct shape){8, MODEL_LENGTH, MODEL_WIDTH, 0, DT_BF16, MANY, true, add});
}
