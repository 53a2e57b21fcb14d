// Reversal: sequences of one position, shorter than a warp and longer than several; no documents,
// and those that start, end and are one position long at the edges of a warp; padding of none, some
// and all of a sequence, within which documents start too; masks with holes; widths on both sides
// of a wide access, padded strides. A map that is its own inverse leaves x after two reversals.
#include "parity.h"

#include <string.h>

struct shape {
    int64_t batch, length, width, gap;
    dt_dtype type;
    enum resets resets;
    bool masked, accumulate;
};

// Straight from the contract: looks for both ends of each position's document.
REFERENCE(reverse_map)
{
    for (int64_t b = 0; b < a->batch; b++) {
        const uint8_t *reset = a->reset ? a->reset + b * a->length : NULL;
        int64_t n = a->length;
        while (a->mask && n > 0 && !a->mask[b * a->length + n - 1])
            n--;
        for (int64_t t = 0; t < a->length; t++) {
            int64_t s = t, e = t + 1;
            while (s > 0 && !(reset && reset[s]))
                s--;
            while (e < n && !(reset && reset[e]))
                e++;
            a->map[b * a->length + t] = (int32_t)(t < n ? s + e - 1 - t : t);
        }
    }
    return DT_OK;
}

REFERENCE(reverse_rows)
{
    for (int64_t row = 0; row < a->x.rows; row++)
        for (int64_t i = 0; i < a->x.cols; i++) {
            double x = get_at(&a->x, row / a->length * a->length + a->map[row], i);
            set_at(&a->y, row, i, x + (a->accumulate ? get_at(&a->y, row, i) : 0.0));
        }
    return DT_OK;
}

// A copy is exact; a sum rounds once.
static void compare(struct parity *p, const struct shape *s)
{
    int64_t M = s->batch * s->length, d = s->width, stride = d + s->gap;
    if (!parity_case(p, "reverse: %lld x %lld, width %lld, gap %lld, %s, resets %d%s%s",
                     (long long)s->batch, (long long)s->length, (long long)d, (long long)s->gap,
                     dt_dtype_name(s->type), s->resets, s->masked ? ", mask" : "",
                     s->accumulate ? " +=" : ""))
        return;
    struct dt_reverse_map_args map = {.batch = s->batch,
                                      .length = s->length,
                                      .reset = make_reset(s->batch, s->length, s->resets, 32),
                                      .mask = s->masked ? make_mask(s->batch, s->length) : NULL,
                                      .map = guarded(M * 4)};
    PARITY(p, reverse_map, &map);
    struct dt_view x = normal_view(s->type, M, d, stride, 1.0, 1);
    struct dt_reverse_rows_args rows = {.length = s->length,
                                        .map = map.map,
                                        .x = x,
                                        .y = s->accumulate
                                                 ? normal_view(s->type, M, d, stride, 1.0, 2)
                                                 : fresh_view(s->type, M, d, stride),
                                        .accumulate = s->accumulate};
    PARITY(p, reverse_rows, &rows, OUT(y, .each = s->accumulate ? 1e-7 : 0));
    if (s->accumulate)
        return;
    struct dt_reverse_rows_args back = {
        .length = s->length, .map = map.map, .x = rows.y, .y = fresh_view(s->type, M, d, stride)};
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
