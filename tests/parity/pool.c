// Pooling, forward and backward, with and without an earlier state, and the choice of targets:
// windows of one row, one window, windows without a row that counts, widths on both sides of a
// thread block's and of the CPU's strip, padded strides, equal maxima, missing targets.
#include "parity.h"

#include <math.h>
#include <string.h>

struct shape {
    int64_t windows, length, width, gap;
    dt_dtype type;
    int counted; // how many of four rows count; 4: there is no mask
    bool state, first;
};

static bool counts(const uint8_t *mask, int64_t row)
{
    return !mask || mask[row];
}

// Continues v and c from their earlier values. *at receives the last row that set v; -1: none did.
// Returns c.
static double fold(enum dt_pool pool, const double *x, const uint8_t *mask, int64_t L, double *v,
                   double c, int64_t *at)
{
    double sum = *v * c;
    *at = -1;
    for (int64_t t = 0; t < L; t++) {
        if (!counts(mask, t))
            continue;
        bool sets = pool != DT_POOL_MAX || c == 0.0 || x[t] > *v;
        sum += x[t], c += 1.0;
        *v = pool == DT_POOL_MEAN ? sum / c : sets ? x[t] : *v;
        *at = sets ? t : *at;
    }
    return c;
}

static double *column(const struct dt_view *h, int64_t window, int64_t L, int64_t i)
{
    double *x = zeros(L);
    for (int64_t t = 0; t < L; t++)
        x[t] = get_at(h, window * L + t, i);
    return x;
}

static const uint8_t *mask_of(const uint8_t *mask, int64_t window, int64_t L)
{
    return mask ? mask + window * L : NULL;
}

REFERENCE(pool_forward)
{
    int64_t L = a->length, d = a->h.cols, at;
    for (int64_t place = 0; place < a->out.rows * d; place++) {
        int64_t b = place / d;
        double v = a->before ? (double)a->before[place] : 0.0,
               c = a->before ? (double)a->before_count[b] : 0.0;
        c = fold(a->pool, column(&a->h, b, L, place % d), mask_of(a->mask, b, L), L, &v, c, &at);
        set_at(&a->out, b, place % d, v);
        if (a->after)
            a->after[place] = (float)v, a->after_count[b] = (float)c;
    }
    return DT_OK;
}

REFERENCE(pool_backward)
{
    int64_t L = a->length, d = a->h.cols, at;
    for (int64_t place = 0; place < a->h.rows / L * d; place++) {
        int64_t b = place / d, i = place % d;
        const uint8_t *mask = mask_of(a->mask, b, L);
        double v = a->before ? (double)a->before[place] : 0.0,
               before = a->before ? (double)a->before_count[b] : 0.0,
               dout = (a->dout.data ? get_at(&a->dout, b, i) : 0.0) +
                      (a->dafter ? (double)a->dafter[place] : 0.0);
        double c = fold(a->pool, column(&a->h, b, L, i), mask, L, &v, before, &at);
        if (a->dbefore)
            a->dbefore[place] = (float)(at < 0                    ? dout
                                        : a->pool == DT_POOL_MEAN ? dout * before / c
                                                                  : 0.0);
        for (int64_t t = 0; t < L; t++) {
            double dx = a->pool == DT_POOL_MEAN ? (counts(mask, t) ? dout / c : 0.0)
                        : t == at               ? dout
                                                : 0.0;
            set_at(&a->dh, b * L + t, i, dx + (a->first ? 0.0 : get_at(&a->dh, b * L + t, i)));
        }
    }
    return DT_OK;
}

static uint8_t *make_counted(const struct shape *s)
{
    uint8_t *mask = s->counted < 4 ? guarded(s->windows * s->length) : NULL;
    for (int64_t row = 0; mask && row < s->windows * s->length; row++)
        mask[row] = row * 3 % 4 < s->counted && row / s->length != 1; // no row of the second window
    return mask;
}

struct values {
    enum dt_pool pool;
    int64_t windows, length, width;
    const uint8_t *mask;
    double *h, *before;
    const float *before_count;
};

static void out_of(const void *values, double *out)
{
    const struct values *v = values;
    int64_t L = v->length, at;
    double x[64]; // one column
    for (int64_t place = 0; place < v->windows * v->width; place++) {
        int64_t b = place / v->width;
        for (int64_t t = 0; t < L; t++)
            x[t] = v->h[(b * L + t) * v->width + place % v->width];
        out[place] = v->before ? v->before[place] : 0.0;
        fold(v->pool, x, mask_of(v->mask, b, L), L, &out[place],
             v->before ? (double)v->before_count[b] : 0.0, &at);
    }
}

// A mean of n numbers near 1 rounds n times by up to 2^-24 of them, and each rounding counts less
// in all later means. Last and max are copies of inputs.
static void compare(struct parity *p, const struct shape *s, enum dt_pool pool)
{
    static const char *const names[] = {"none", "mean", "last", "max"};
    int64_t B = s->windows, d = s->width, M = B * s->length, stride = d + s->gap;
    if (!parity_case(p, "pool: %s of %lld x %lld, width %lld, gap %lld, %s, %d/4 counted%s%s",
                     names[pool], (long long)B, (long long)s->length, (long long)d,
                     (long long)s->gap, dt_dtype_name(s->type), s->counted,
                     s->state ? ", with state" : "", s->first ? ", first" : ""))
        return;
    struct dt_pool_forward_args forward = {.pool = pool,
                                           .length = s->length,
                                           .h = normal_view(s->type, M, d, stride, 1.0, 1),
                                           .mask = make_counted(s),
                                           .out = fresh_view(s->type, B, d, stride)};
    if (s->state) {
        float *count = guarded(B * 4);
        for (int64_t b = 0; b < B; b++)
            count[b] = (float)(b * 5 % 7);
        forward.before = normal(B * d, 1.0, 2);
        forward.before_count = count;
        forward.after = guarded(B * d * 4);
        forward.after_count = guarded(B * 4);
    }
    struct dt_pool_backward_args backward = {.pool = pool,
                                             .length = s->length,
                                             .h = forward.h,
                                             .mask = forward.mask,
                                             .dout = normal_view(s->type, B, d, stride, 1.0, 3),
                                             .dh = s->first
                                                       ? fresh_view(s->type, M, d, stride)
                                                       : normal_view(s->type, M, d, stride, 1.0, 4),
                                             .first = s->first};
    if (s->state) {
        backward.before = forward.before;
        backward.before_count = forward.before_count;
        backward.dbefore = guarded(B * d * 4);
        if (pool != DT_POOL_LAST) // with both states, and with one of them
            backward.dafter = normal(B * d, 1.0, 5);
        if (pool == DT_POOL_MAX)
            backward.dout = (struct dt_view){0};
    }
    PARITY(p, pool_forward, &forward, OUT(out, .each = 1e-6), OUT(after, .each = 1e-6));
    PARITY(p, pool_backward, &backward, OUT(dh, .each = 2e-7), OUT(dbefore, .each = 4e-7));
    if (!s->first || s->type != DT_F32 || !p->is_cpu || s->length > 64)
        return;
    struct values v = {.pool = pool,
                       .windows = B,
                       .length = s->length,
                       .width = d,
                       .mask = forward.mask,
                       .h = dense_view(&forward.h),
                       .before = forward.before ? dense_array(forward.before, B * d) : NULL,
                       .before_count = forward.before_count};
    struct dt_view dv = fresh_view(DT_F32, B, d, d);
    for (int64_t place = 0; place < B * d; place++)
        set_at(&dv, place / d, place % d,
               (backward.dout.data ? get_at(&backward.dout, place / d, place % d) : 0.0) +
                   (backward.dafter ? (double)backward.dafter[place] : 0.0));
    const struct objective objective = {.dy = &dv, .forward = out_of, .problem = &v};
    check_direction(p, "h", v.h, dense_view(&backward.dh), M * d, &objective, 1e-5);
    if (v.before)
        check_direction(p, "before", v.before, dense_array(backward.dbefore, B * d), B * d,
                        &objective, 1e-5);
}

// Positions one at a time, each with the state of those before, give the bits of the whole window.
static void check_steps(struct parity *p, enum dt_pool pool)
{
    enum { B = 3, L = 19, D = 21 };
    if (!parity_case(p, "pool: %d, one position at a time", pool))
        return;
    float *state[2] = {guarded(B * D * 4), guarded(B * D * 4)},
          *count[2] = {guarded(B * 4), guarded(B * 4)};
    p->run_only = true;
    struct dt_view h = normal_view(DT_F32, B * L, D, D, 1.0, 1);
    struct dt_pool_forward_args whole = {
        .pool = pool, .length = L, .h = h, .out = fresh_view(DT_F32, B, D, D)};
    PARITY(p, pool_forward, &whole);
    for (int64_t t = 0; t < L; t++) {
        struct dt_view now = fresh_view(DT_F32, B, D, D);
        for (int64_t b = 0; b < B; b++)
            memcpy(dt_view_at(&now, b, 0), dt_view_at(&h, b * L + t, 0), D * sizeof(float));
        struct dt_pool_forward_args step = {.pool = pool,
                                            .length = 1,
                                            .h = now,
                                            .before = t ? state[t % 2] : NULL,
                                            .before_count = t ? count[t % 2] : NULL,
                                            .out = fresh_view(DT_F32, B, D, D),
                                            .after = state[(t + 1) % 2],
                                            .after_count = count[(t + 1) % 2]};
        PARITY(p, pool_forward, &step);
        if (t == L - 1)
            CHECK(memcmp(step.out.data, whole.out.data, B * D * sizeof(float)) == 0,
                  "%s: not the bits of the window", p->text);
    }
    p->run_only = false;
}

// A number that is not finite must not be lost among others.
static void check_not_finite(struct parity *p)
{
    if (!parity_case(p, "pool: hidden states that are not finite"))
        return;
    p->run_only = true;
    for (int pool = DT_POOL_MEAN; pool <= DT_POOL_MAX; pool++)
        for (int64_t row = 0; row < 4; row++) {
            struct dt_pool_forward_args a = {.pool = (enum dt_pool)pool,
                                             .length = 4,
                                             .h = normal_view(DT_F32, 4, 3, 3, 1.0, 1),
                                             .out = fresh_view(DT_F32, 1, 3, 3)};
            ((float *)a.h.data)[row * 3 + 1] = NAN;
            PARITY(p, pool_forward, &a);
            const float *out = a.out.data;
            CHECK(isnan(out[1]) || (pool == DT_POOL_LAST && row < 3), "pool %d: row %lld is lost",
                  pool, (long long)row);
            CHECK(isfinite(out[0]) && isfinite(out[2]), "pool %d: other columns", pool);
        }
    p->run_only = false;
}

REFERENCE(pool_targets)
{
    int64_t L = a->length;
    for (int64_t b = 0; b < a->targets_out.rows; b++) {
        int64_t latest = -1;
        for (int64_t i = 0; i < a->targets.cols; i++)
            *(float *)dt_view_at(&a->targets_out, b, i) = NAN;
        for (int64_t k = 0; k < a->n; k++) {
            int64_t found = -1, first = a->outputs[k].first, end = first + a->outputs[k].n;
            for (int64_t row = b * L; row < (b + 1) * L; row++)
                for (int64_t i = first; i < end; i++)
                    if (counts(a->mask, row) && !isnan(get_at(&a->targets, row, i)))
                        found = row;
            for (int64_t i = first; found >= 0 && i < end; i++)
                *(float *)dt_view_at(&a->targets_out, b, i) = (float)get_at(&a->targets, found, i);
            if (a->weights.data)
                set_at(&a->weights_out, b, 1 + k,
                       found < 0 ? 0.0 : get_at(&a->weights, found, 1 + k));
            latest = found > latest ? found : latest;
        }
        if (a->weights.data)
            set_at(&a->weights_out, b, 0, latest < 0 ? 0.0 : get_at(&a->weights, latest, 0));
    }
    return DT_OK;
}

// Three outputs with 1, `width` and 2 columns, of which the middle one or all are chosen. Some rows
// miss targets of one output, some a part of them, and the last rows miss all.
static void compare_targets(struct parity *p, const struct shape *s, bool all)
{
    int64_t B = s->windows, M = B * s->length, W = s->width + 3;
    if (!parity_case(p, "pool: targets of %lld x %lld, %lld columns, gap %lld, %d/4 counted%s%s",
                     (long long)B, (long long)s->length, (long long)W, (long long)s->gap,
                     s->counted, s->state ? ", weights" : "", all ? "" : ", some outputs"))
        return;
    struct dt_pool_targets_args a = {
        .n = 3,
        .length = s->length,
        .outputs = {{0, all}, {1, (int32_t)s->width}, {(int32_t)s->width + 1, all ? 2 : 0}},
        .targets = normal_view(DT_F32, M, W, W + s->gap, 1.0, 1),
        .mask = make_counted(s),
        .targets_out = fresh_view(DT_F32, B, W, W + s->gap)};
    if (s->state) {
        a.weights = normal_view(DT_F32, M, 4, 4 + s->gap, 1.0, 2);
        a.weights_out = fresh_view(DT_F32, B, 4, 4);
    }
    for (int64_t row = 0; row < M; row++)
        for (int64_t i = 0; i < W; i++) {
            int64_t left = s->length - 1 - row % s->length;
            if ((row + i) % 3 == 1 || (s->length > 10 && left < 40 && left % 7 != 6) ||
                (i == 0 && row % 11))
                *(float *)dt_view_at(&a.targets, row, i) = NAN;
        }
    PARITY(p, pool_targets, &a);
}

void parity_pool(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 0, DT_F32, 4, 1, 1},   {3, 1, 7, 2, DT_BF16, 3, 1, 0},
        {2, 5, 127, 0, DT_F32, 3, 0, 1}, {3, 33, 129, 3, DT_F32, 3, 1, 0},
        {3, 7, 19, 0, DT_F32, 3, 1, 1},  {2, 40, 257, 0, DT_BF16, 4, 0, 1},
        {5, 64, 30, 1, DT_F32, 2, 0, 1}, {2, 100, 520, 8, DT_BF16, 1, 1, 1},
        {1, 777, 3, 0, DT_F32, 3, 0, 0}, {4, 9, 16, 0, DT_F32, 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++) {
        for (int pool = DT_POOL_MEAN; pool <= DT_POOL_MAX; pool++)
            compare(p, &shapes[i], (enum dt_pool)pool);
        compare_targets(p, &shapes[i], i % 2);
        compare_targets(p, &shapes[i], (i + 1) % 2);
    }
    for (int pool = DT_POOL_MEAN; pool <= DT_POOL_MAX && !p->model; pool++)
        check_steps(p, (enum dt_pool)pool);
    if (!p->model)
        check_not_finite(p);
    for (int pool = DT_POOL_MEAN; pool <= DT_POOL_MAX && p->model; pool++)
        compare(p, &(struct shape){8, MODEL_LENGTH / 8, MODEL_WIDTH, 0, DT_BF16, 3, false, false},
                (enum dt_pool)pool);
}
