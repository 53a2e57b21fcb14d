// Attention: heads that share keys, head widths that are and are not whole vectors, windows shorter
// and longer than the sequence and its tiles, documents, keys and values of an earlier call (all
// valid, some, none), both directions, with and without padding, and a sequence in parts compared
// with the whole sequence.
#include "parity.h"

struct shape {
    int64_t batch, length, heads, groups, width, window;
    dt_dtype type;
    bool before, wide; // keys and values of an earlier call; strides larger than rows
    enum resets resets;
    unsigned dkv; // DH_LAST: has dk_last and dv_last; DH0: has dk0 and dv0
    bool both, masked;
};

// ---- the double-precision form

// A problem in dense doubles. Rows of k and v are positions -(W - 1) … L - 1 of each sequence, also
// without a state. Angles rotate q and k before their products.
struct values {
    int64_t B, L, H, G, E, W, rows;
    const struct dt_attention_inputs *in;
    double *q, *k, *v;
};

static double *row_of(const struct values *v, double *x, int64_t b, int64_t j, int64_t g)
{
    return x + ((b * v->rows + j + v->W - 1) * v->G + g) * v->E;
}

static struct values make_values(const struct dt_attention_inputs *in)
{
    struct values v = {.B = in->batch,
                       .L = in->length,
                       .H = in->n_head,
                       .G = in->n_kv_head,
                       .E = in->width,
                       .W = in->window,
                       .rows = in->length + in->window - 1,
                       .in = in};
    int64_t cols = v.G * v.E, size = dt_dtype_size(in->k.dtype);
    v.q = dense_view(&in->q);
    v.k = zeros(v.B * v.rows * cols), v.v = zeros(v.B * v.rows * cols);
    for (int64_t b = 0; b < v.B; b++)
        for (int64_t j = in->k0 ? 1 - v.W : 0; j < v.L; j++)
            for (int64_t i = 0; i < cols; i++) {
                int64_t at = (b * (v.W - 1) + v.W - 1 + j) * cols * size;
                row_of(&v, v.k, b, j, 0)[i] = j < 0 ? get((const char *)in->k0 + at, in->k.dtype, i)
                                                    : get_at(&in->k, b * v.L + j, i);
                row_of(&v, v.v, b, j, 0)[i] = j < 0 ? get((const char *)in->v0 + at, in->v.dtype, i)
                                                    : get_at(&in->v, b * v.L + j, i);
            }
    return v;
}

// Where there is padding, which both directions allow, each position of it is a document.
static bool starts_document(const struct values *v, int64_t b, int64_t t)
{
    bool counts = !v->in->both || !v->in->mask;
    for (int64_t i = t; i < v->L && !counts; i++)
        counts = v->in->mask[b * v->L + i];
    return !counts || (v->in->reset && v->in->reset[b * v->L + t]);
}

// The first position that t may see, apart from its window: that of a reset or of the first valid
// row.
static int64_t first_of(const struct values *v, int64_t b, int64_t t)
{
    int64_t first = v->in->k0 ? -v->in->count0[b] : 0;
    for (int64_t i = 0; i <= t; i++)
        first = starts_document(v, b, i) ? i : first;
    return first;
}

// The end of the positions that t sees.
static int64_t stop_of(const struct values *v, int64_t b, int64_t t)
{
    int64_t stop = t + 1;
    while (v->in->both && stop < v->L && stop < t + v->W && !starts_document(v, b, stop))
        stop++;
    return stop;
}

static int64_t start_of(const struct values *v, int64_t b, int64_t t)
{
    int64_t first = first_of(v, b, t);
    return t - v->W + 1 > first ? t - v->W + 1 : first;
}

static void rotate(const struct values *v, const double *x, double angle, double *out)
{
    int64_t half = v->E / 2;
    for (int64_t i = 0; i < half; i++) {
        double a =
            v->in->rope_base == 0 ? 0 : angle * pow(v->in->rope_base, -(double)i / (double)half);
        out[i] = x[i] * cos(a) - x[half + i] * sin(a);
        out[half + i] = x[half + i] * cos(a) + x[i] * sin(a);
    }
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

// Computes the probabilities p[j - start] of the positions that a query sees, and its output;
// returns lse. The keys are rotated by their distance to the query.
static double attend(const struct values *v, int64_t b, int64_t t, int64_t h, double *p, double *y)
{
    const double *q = v->q + ((b * v->L + t) * v->H + h) * v->E;
    int64_t start = start_of(v, b, t), stop = stop_of(v, b, t), g = h * v->G / v->H;
    double turned[DT_ATTENTION_HEAD_MAX], most = -HUGE_VAL, sum = 0;
    for (int64_t j = start; j < stop; j++) {
        rotate(v, row_of(v, v->k, b, j, g), (double)(j - t), turned);
        p[j - start] = dot(q, turned, v->E) / sqrt((double)v->E);
        most = fmax(most, p[j - start]);
    }
    for (int64_t j = start; j < stop; j++)
        sum += exp(p[j - start] - most);
    memset(y, 0, (size_t)v->E * sizeof *y);
    for (int64_t j = start; j < stop; j++) {
        p[j - start] = exp(p[j - start] - most) / sum;
        for (int64_t i = 0; i < v->E; i++)
            y[i] += p[j - start] * row_of(v, v->v, b, j, g)[i];
    }
    return most + log(sum);
}

// Returns the element of x that is element i of k_last [B, W - 1, G·E]; NULL if that is not valid.
static double *last_at(const struct values *v, double *x, int64_t i)
{
    int64_t keep = v->W - 1, cols = v->G * v->E, b = i / cols / keep;
    int64_t j = v->L - keep + i / cols % keep;
    return j < first_of(v, b, v->L - 1) ? NULL : row_of(v, x, b, j, 0) + i % cols;
}

static int64_t kept_size(const struct values *v)
{
    return v->B * (v->W - 1) * v->G * v->E;
}

static void store_last(const struct values *v, double *x, dt_dtype type, void *last)
{
    for (int64_t i = 0; i < kept_size(v); i++) {
        const double *from = last_at(v, x, i);
        set(last, type, i, from ? *from : 0.0);
    }
}

// Adds the gradients of k_last to the gradients g of its rows. Then k0 gets those of the rows
// before position 0.
static void add_last(const struct values *v, double *g, const float *last)
{
    for (int64_t i = 0; i < kept_size(v) && last; i++) {
        double *to = last_at(v, g, i);
        if (to)
            *to += (double)last[i];
    }
}

static void store_before(const struct values *v, double *g, float *to)
{
    int64_t each = kept_size(v) / v->B;
    for (int64_t b = 0; b < v->B && to; b++)
        store_array(to + b * each, each, row_of(v, g, b, 1 - v->W, 0), false);
}

REFERENCE(attention_forward)
{
    struct values v = make_values(&a->in);
    double *p = zeros(v.rows), y[DT_ATTENTION_HEAD_MAX];
    for (int64_t i = 0; i < v.B * v.L * v.H; i++) {
        int64_t row = i / v.H, h = i % v.H;
        double lse = attend(&v, row / v.L, row % v.L, h, p, y);
        for (int64_t e = 0; e < v.E; e++)
            set_at(&a->y, row, h * v.E + e, y[e]);
        if (a->lse)
            a->lse[i] = (float)lse;
    }
    if (a->k_last) {
        store_last(&v, v.k, a->in.k.dtype, a->k_last);
        store_last(&v, v.v, a->in.k.dtype, a->v_last);
        for (int64_t b = 0; b < v.B; b++) {
            int64_t count = v.L - first_of(&v, b, v.L - 1);
            a->count_last[b] = (int32_t)(count < v.W - 1 ? count : v.W - 1);
        }
    }
    return DT_OK;
}

REFERENCE(attention_backward)
{
    struct values v = make_values(&a->in), g = v;
    double *p = zeros(v.rows), y[DT_ATTENTION_HEAD_MAX], k[DT_ATTENTION_HEAD_MAX],
           back[DT_ATTENTION_HEAD_MAX];
    double *dk = zeros(v.B * v.L * v.G * v.E), *dv = zeros(v.B * v.L * v.G * v.E);
    int64_t E = v.E;
    g.q = zeros(v.B * v.L * v.H * E), g.k = zeros(v.B * v.rows * v.G * E),
    g.v = zeros(v.B * v.rows * v.G * E);
    for (int64_t i = 0; i < v.B * v.L * v.H; i++) {
        int64_t row = i / v.H, b = row / v.L, t = row % v.L, h = i % v.H, group = h * v.G / v.H,
                start = start_of(&v, b, t), stop = stop_of(&v, b, t);
        double dy[DT_ATTENTION_HEAD_MAX], *dq = g.q + i * E, scale = 1 / sqrt((double)E);
        attend(&v, b, t, h, p, y);
        for (int64_t e = 0; e < E; e++)
            dy[e] = get_at(&a->dy, row, h * E + e);
        for (int64_t j = start; j < stop; j++) {
            double *value = row_of(&v, v.v, b, j, group), w = p[j - start],
                   ds = w * (dot(dy, value, E) - dot(dy, y, E)) * scale;
            rotate(&v, row_of(&v, v.k, b, j, group), (double)(j - t), k);
            rotate(&v, v.q + i * E, (double)(t - j), back);
            for (int64_t e = 0; e < E; e++) {
                dq[e] += ds * k[e];
                row_of(&v, g.k, b, j, group)[e] += ds * back[e];
                row_of(&v, g.v, b, j, group)[e] += w * dy[e];
            }
        }
    }
    add_last(&v, g.k, a->dk_last);
    add_last(&v, g.v, a->dv_last);
    store_before(&v, g.k, a->dk0);
    store_before(&v, g.v, a->dv0);
    for (int64_t i = 0; i < v.B * v.L * v.G * E; i++) {
        int64_t row = i / (v.G * E);
        dk[i] = row_of(&v, g.k, row / v.L, row % v.L, 0)[i % (v.G * E)];
        dv[i] = row_of(&v, g.v, row / v.L, row % v.L, 0)[i % (v.G * E)];
    }
    store_view(&a->dq, g.q);
    store_view(&a->dk, dk);
    store_view(&a->dv, dv);
    return DT_OK;
}

static void y_of(const void *values, double *y)
{
    const struct values *v = values;
    double *p = zeros(v->rows);
    for (int64_t i = 0; i < v->B * v->L * v->H; i++)
        attend(v, i / v->H / v->L, i / v->H % v->L, i % v->H, p, y + i * v->E);
    y += v->B * v->L * v->H * v->E;
    for (int64_t i = 0; i < kept_size(v); i++) {
        const double *k = last_at(v, v->k, i), *value = last_at(v, v->v, i);
        y[i] = k ? *k : 0.0;
        y[kept_size(v) + i] = value ? *value : 0.0;
    }
}

// ---- runs on the tested backend

struct op {
    struct dt_attention_forward_args forward;
    struct dt_attention_backward_args backward;
};

// q, k and v are columns of one matrix.
static struct op make_op(const struct shape *s)
{
    int64_t rows = s->batch * s->length, Q = s->heads * s->width, K = s->groups * s->width,
            kept = s->batch * (s->window - 1), gap = s->wide ? 24 : 0;
    struct dt_view qkv =
        normal_view(s->type, rows, Q + 2 * K, aligned_stride(s->type, Q + 2 * K + gap), 1.0, 1);
    struct dt_view dqkv =
        fresh_view(s->type, rows, Q + 2 * K, aligned_stride(s->type, Q + 2 * K + gap));
    struct dt_attention_inputs in = {.batch = s->batch,
                                     .length = s->length,
                                     .n_head = s->heads,
                                     .n_kv_head = s->groups,
                                     .width = s->width,
                                     .window = s->window,
                                     .rope_base =
                                         s->groups == 3 ? 0 : 10000, // also without positions
                                     .q = dt_view_cols(qkv, 0, Q),
                                     .k = dt_view_cols(qkv, Q, Q + K),
                                     .v = dt_view_cols(qkv, Q + K, Q + 2 * K),
                                     .both = s->both,
                                     .reset = make_reset(s->batch, s->length, s->resets, 1),
                                     .mask = s->masked ? make_mask(s->batch, s->length) : NULL};
    bool state = s->window > 1 && !s->both, last = state && s->dkv & DH_LAST,
         first = state && s->dkv & DH0;
    int64_t bytes = kept * K * dt_dtype_size(s->type);
    if (s->before && state) {
        int32_t *count = guarded(s->batch * 4);
        in.k0 = normal_rows(s->type, kept, K, K, 1.0, 2);
        in.v0 = normal_rows(s->type, kept, K, K, 1.0, 3);
        in.count0 = count;
        for (int64_t b = 0; b < s->batch; b++) // all rows of the state are valid, none, some
            count[b] = (int32_t)(b % 3 == 0 ? s->window - 1 : b % 3 == 1 ? 0 : s->window / 2);
    }
    struct dt_view y = fresh_view(s->type, rows, Q, aligned_stride(s->type, Q + gap));
    float *lse = guarded(rows * s->heads * 4);
    return (struct op){{.in = in,
                        .y = y,
                        .lse = lse,
                        .k_last = state ? guarded(bytes) : NULL,
                        .v_last = state ? guarded(bytes) : NULL,
                        .count_last = state ? guarded(s->batch * 4) : NULL},
                       {.in = in,
                        .y = y,
                        .lse = lse,
                        .dk_last = last ? normal(kept * K, 1.0, 5) : NULL,
                        .dv_last = last ? normal(kept * K, 1.0, 6) : NULL,
                        .dk0 = first ? guarded(kept * K * 4) : NULL,
                        .dv0 = first ? guarded(kept * K * 4) : NULL,
                        .dy = normal_view(s->type, rows, Q, aligned_stride(s->type, Q), 1.0, 4),
                        .dq = dt_view_cols(dqkv, 0, Q),
                        .dk = dt_view_cols(dqkv, Q, Q + K),
                        .dv = dt_view_cols(dqkv, Q + K, Q + 2 * K)}};
}

// Tensor cores also round rotated queries and keys, probabilities and ds to bf16, each by up to
// half a spacing.
static bool rounds_more(const struct parity *p, const struct dt_attention_inputs *in)
{
    return !p->is_cpu && dt_attention_on_mma(in->q.dtype, in->width);
}

// Sums over E products and over the positions seen have another order, and an angle differs by a
// rounding of fp32. bf16 values may be rounded up or down.
static void forward(struct parity *p, struct dt_attention_forward_args *a)
{
    bool more = rounds_more(p, &a->in);
    double norm = p->is_cpu ? 2e-6 : 1e-5;
    PARITY(p, attention_forward, a, OUT(y, .each = more ? 1e-2 : 3e-5, .norm = more ? 4e-3 : norm),
           OUT(lse, .each = more ? 1e-2 : 1e-5, .norm = more ? 3e-3 : norm));
}

// delta is computed from the stored y, whose elements bf16 rounds by half a spacing. Where
// gradients are small compared with dp and delta, that error remains. A position that sees only
// itself, as all do with W = 1, has a ds of 0 apart from rounding.
static void backward(struct parity *p, struct dt_attention_backward_args *a)
{
    dt_dtype type = a->in.q.dtype;
    double norm = a->in.window == 1        ? 0
                  : rounds_more(p, &a->in) ? 8e-3
                  : type == DT_BF16        ? 4e-3
                  : p->is_cpu              ? 4e-6
                                           : 1e-5;
    double each = rounds_more(p, &a->in) ? 4e-2 : type == DT_BF16 ? 2e-2 : 5e-5;
    PARITY(p, attention_backward, a, OTHERS(.each = each, .norm = norm));
}

static void check_directions(const struct parity *p, const struct dt_attention_backward_args *a)
{
    struct values v = make_values(&a->in);
    int64_t kept = kept_size(&v), each = kept / v.B;
    double *last = zeros(2 * kept);
    memcpy(last, dense_array(a->dk_last, kept), (size_t)kept * sizeof *last);
    memcpy(last + kept, dense_array(a->dv_last, kept), (size_t)kept * sizeof *last);
    const struct objective objective = {&a->dy, y_of, &v, last, 2 * kept};
    double tolerance = a->dq.dtype == DT_BF16 ? 2e-2 : 2e-5;
    int64_t n = v.L * v.G * v.E;
    check_direction(p, "q", v.q, dense_view(&a->dq), v.B * v.L * v.H * v.E, &objective, tolerance);
    for (int64_t b = 0; b < v.B; b++) {
        struct dt_view dk = dt_view_rows(a->dk, b * v.L, (b + 1) * v.L);
        struct dt_view dv = dt_view_rows(a->dv, b * v.L, (b + 1) * v.L);
        check_direction(p, "k", row_of(&v, v.k, b, 0, 0), dense_view(&dk), n, &objective,
                        tolerance);
        check_direction(p, "v", row_of(&v, v.v, b, 0, 0), dense_view(&dv), n, &objective,
                        tolerance);
        if (!a->dk0)
            continue;
        check_direction(p, "k0", row_of(&v, v.k, b, 1 - v.W, 0),
                        dense_array(a->dk0 + b * each, each), each, &objective, tolerance);
        check_direction(p, "v0", row_of(&v, v.v, b, 1 - v.W, 0),
                        dense_array(a->dv0 + b * each, each), each, &objective, tolerance);
    }
}

static void compare(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "attention: B %d L %d H %d G %d E %d W %d %s%s%s%s%s, resets %d, dkv %u",
                     (int)s->batch, (int)s->length, (int)s->heads, (int)s->groups, (int)s->width,
                     (int)s->window, dt_dtype_name(s->type), s->before ? " state" : "",
                     s->wide ? " wide" : "", s->both ? " both ways" : "", s->masked ? " mask" : "",
                     s->resets, s->dkv))
        return;
    struct op op = make_op(s);
    forward(p, &op.forward);
    backward(p, &op.backward);
    bool alone = s->length == 1 || s->window == 1; // ds is 0
    if (p->is_cpu && !alone && s->length < 100)
        check_directions(p, &op.backward);
}

// A sequence in parts, one of them a single position, with keys and values carried between them,
// gives what the whole sequence gives, apart from rounding of angles and sums. The states at the
// end have the same bits. If the parts know their places in the sequence, all results have the same
// bits.
static void check_carry(struct parity *p, int64_t window, dt_dtype type, enum resets resets,
                        bool places)
{
    enum { PARTS = 4, P = DT_ATTENTION_PART };
    const int64_t width = type == DT_BF16 ? 16 : 8; // with tensor cores, and without
    const int64_t begins[][PARTS + 1] = {
        {0, 19, 20, 53, 70}, {0, 19, 20, 211, 230}, {0, P, 2 * P, 3 * P, 3 * P + 9}};
    const int64_t *begin = begins[!places ? 0 : p->is_cpu ? 1 : 2];
    const struct shape s = {
        1, begin[PARTS], 2, 1, width, window, type, .before = true, .resets = resets};
    if (!parity_case(p, "attention: a sequence in parts, W %d %s, resets %d%s", (int)window,
                     dt_dtype_name(type), resets, places ? ", places" : ""))
        return;
    struct op op = make_op(&s), parts = make_op(&s);
    p->run_only = true;
    forward(p, &op.forward);
    for (int i = 0; i < PARTS; i++) {
        struct dt_attention_forward_args f = parts.forward;
        f.in.at = places ? begin[i] : 0;
        f.in.length = begin[i + 1] - begin[i];
        f.in.q = dt_view_rows(f.in.q, begin[i], begin[i + 1]);
        f.in.k = dt_view_rows(f.in.k, begin[i], begin[i + 1]);
        f.in.v = dt_view_rows(f.in.v, begin[i], begin[i + 1]);
        f.y = dt_view_rows(f.y, begin[i], begin[i + 1]);
        f.lse = f.lse + begin[i] * s.heads;
        f.in.reset = f.in.reset ? f.in.reset + begin[i] : NULL;
        f.k_last = guarded(guarded_size(op.forward.k_last));
        f.v_last = guarded(guarded_size(op.forward.v_last));
        f.count_last = guarded(4);
        forward(p, &f);
        parts.forward.in.k0 = f.k_last, parts.forward.in.v0 = f.v_last;
        parts.forward.in.count0 = f.count_last;
    }
    p->run_only = false;
    double worst = 0;
    for (int64_t i = 0; i < s.length * op.forward.y.cols; i++)
        worst = fmax(worst,
                     fabs(get_at(&op.forward.y, i / op.forward.y.cols, i % op.forward.y.cols) -
                          get_at(&parts.forward.y, i / op.forward.y.cols, i % op.forward.y.cols)));
    CHECK(worst <= (places            ? 0
                    : type == DT_BF16 ? 2e-2
                                      : 1e-5),
          "%s: y differs by %g", p->text, worst);
    CHECK(!places || same_bits(parts.forward.lse, op.forward.lse), "%s: lse differs", p->text);
    CHECK(same_bits(parts.forward.in.k0, op.forward.k_last), "%s: k_last differs", p->text);
    CHECK(same_bits(parts.forward.in.v0, op.forward.v_last), "%s: v_last differs", p->text);
    CHECK(same_bits(parts.forward.in.count0, op.forward.count_last), "%s: count_last differs",
          p->text);
}

void parity_attention(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 2, 1, DT_F32, .resets = NO_RESETS, .dkv = DH_LAST | DH0},
        {3, 1, 4, 2, 16, 9, DT_F32, .before = true, .dkv = DH_LAST | DH0},
        {3, 1, 2, 1, 64, 60, DT_BF16, .before = true},
        {1, 77, 4, 4, 64, 77, DT_F32, .resets = NO_RESETS, .dkv = DH_LAST | DH0},
        {3, 77, 4, 2, 6, 20, DT_F32, .before = true, .wide = true, .resets = MANY,
         .dkv = DH_LAST | DH0},
        {3, 50, 3, 1, 34, 200, DT_F32, .before = true, .wide = true},
        {2, 61, 6, 2, 10, 1, DT_F32, .resets = NO_RESETS, .dkv = DH_LAST | DH0},
        {1, 130, 2, 2, 16, 2, DT_F32, .before = true, .resets = IN_A_ROW, .dkv = DH_LAST},
        {3, 97, 2, 1, 80, 33, DT_F32, .before = true, .resets = AT_END, .dkv = DH_LAST | DH0},
        {1, 49, 2, 1, 130, 49, DT_F32, .wide = true, .dkv = DH0},
        {1, 33, 3, 3, 4, 20, DT_F32, .resets = MANY, .dkv = DH_LAST | DH0},
        {1, 35, 1, 1, 256, 20, DT_BF16, .before = true, .dkv = DH_LAST | DH0},
        {2, 77, 4, 2, 32, 77, DT_BF16, .wide = true, .resets = MANY, .dkv = DH_LAST | DH0},
        {3, 65, 4, 1, 64, 64, DT_BF16, .before = true, .resets = IN_A_ROW},
        {1, 70, 3, 3, 12, 50, DT_BF16, .before = true, .resets = MANY, .dkv = DH_LAST | DH0},
        {1, 240, 2, 1, 8, 100, DT_F32, .before = true, .dkv = DH_LAST | DH0},
        {1, 300, 20, 1, 4, 300, DT_F32, .resets = MANY},
        {3, 135, 2, 1, 16, 80, DT_BF16, .before = true, .resets = MANY, .dkv = DH_LAST | DH0},
        {2, 63, 3, 3, 16, 63, DT_BF16, .resets = NO_RESETS, .dkv = DH_LAST},
        {1, 193, 2, 2, 32, 70, DT_BF16, .before = true, .dkv = DH_LAST | DH0},
        {1, 194, 2, 1, 64, 100, DT_BF16, .wide = true, .resets = AT_END, .dkv = DH0},
        {3, 1, 2, 1, 128, 40, DT_BF16, .before = true, .dkv = DH_LAST | DH0},
        {2, 129, 2, 1, 128, 65, DT_BF16, .before = true, .wide = true, .resets = MANY,
         .dkv = DH_LAST | DH0},
        {1, 135, 2, 1, 256, 90, DT_BF16, .before = true, .resets = IN_A_ROW, .dkv = DH_LAST | DH0},
        {1, 65, 1, 1, 256, 1, DT_BF16, .resets = NO_RESETS},
        {3, 77, 4, 2, 6, 20, DT_F32, .wide = true, .resets = MANY, .both = true, .masked = true},
        {3, 70, 2, 2, 34, 200, DT_F32, .resets = AT_END, .both = true, .masked = true},
        {1, 100, 2, 1, 10, 100, DT_F32, .resets = IN_A_ROW, .both = true},
        {2, 135, 2, 1, 16, 80, DT_BF16, .resets = MANY, .both = true, .masked = true},
        {1, 193, 2, 2, 32, 40, DT_BF16, .wide = true, .resets = IN_A_ROW, .both = true},
        {1, 100, 1, 1, 128, 129, DT_BF16, .resets = NO_RESETS, .both = true},
        {1, 70, 1, 1, 256, 30, DT_BF16, .resets = AT_END, .both = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (int k = 0; k < 2 && p->model; k++)
        compare(p, &(struct shape){1, MODEL_LENGTH, 12, 4, 64, MODEL_LENGTH / (1 + k),
                                   k ? DT_F32 : DT_BF16, .before = true, .wide = true,
                                   .resets = k ? MANY : NO_RESETS, .dkv = DH_LAST | DH0});
    for (int resets = NO_RESETS; resets < RESETS; resets++) {
        for (int places = 0; places <= 1; places++) {
            check_carry(p, 24, DT_F32, (enum resets)resets, places);
            check_carry(p, 2, DT_BF16, (enum resets)resets, places);
            check_carry(p, 100, DT_F32, (enum resets)resets, places);
        }
        check_carry(p, 60, DT_BF16, (enum resets)resets, true);
    }
}
