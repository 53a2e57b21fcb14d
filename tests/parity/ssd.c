// State-space duality and the gated norm after it: heads that do and do not share B and C; states,
// heads and tokens on both sides of a vector's and a strip's width; chunks that do and do not end
// with the sequence; resets anywhere; shapes up to the 130M model's.
#include "parity.h"

// ---- the double-precision form of ssd: one head after another, all states kept

struct shape {
    int64_t batch, length, heads, groups, P, N, chunk;
    dt_dtype type;
    bool h0, wide, accumulate; // wide: strides larger than rows
    enum resets resets;
    float dt_min, dt_max; // 0, 0: no clamp
    unsigned dh;          // DH_LAST: has dh_last; DH0: has dh0
};

static const char name[] = "ssd";
enum { X, DT, B_, C_, A_LOG, D_SKIP, DT_BIAS, INPUTS }; // inputs with gradients
static const char *const input_name[] = {"x", "dt", "b", "c", "a_log", "d_skip", "dt_bias"};
enum { SHOWS = 1 << X | 1 << DT | 1 << C_ | 1 << D_SKIP };
#define FORGET(forward) ((forward)->states = NULL)
typedef struct dt_ssd_inputs inputs_args;
typedef struct dt_ssd_forward_args forward_args;
typedef struct dt_ssd_backward_args backward_args;

// A problem in dense doubles, or the gradients of one.
struct values {
    int64_t B, L, H, G, P, N, outputs, states; // outputs: elements of y; states: of h0
    double dt_min, dt_max;
    const uint8_t *reset;
    double *in[INPUTS], *h0;
};

#include "recurrence.h"

static struct tensors inputs_of(const struct dt_ssd_inputs *in)
{
    int64_t H = in->heads;
    return (struct tensors){
        .n_views = 4,
        .view = {&in->x, &in->dt, &in->b, &in->c},
        .n_arrays = 3,
        .array = {{in->a_log, H}, {in->d_skip, H}, {in->dt_bias, H}},
    };
}

static struct tensors gradients_of(const struct dt_ssd_backward_args *a)
{
    struct tensors gradients = inputs_of(&a->in);
    const struct dt_view *const views[] = {&a->dx, &a->ddt, &a->db, &a->dc};
    memcpy(gradients.view, views, sizeof views);
    gradients.array[0].data = a->da_log;
    gradients.array[1].data = a->dd_skip;
    gradients.array[2].data = a->ddt_bias;
    return gradients;
}

static struct values make_values(const struct dt_ssd_inputs *in)
{
    struct tensors inputs = inputs_of(in);
    struct values v = {.B = in->batch,
                       .L = in->length,
                       .H = in->heads,
                       .G = in->groups,
                       .P = in->x.cols / in->heads,
                       .N = in->b.cols / in->groups,
                       .dt_min = (double)in->dt_min,
                       .dt_max = (double)in->dt_max,
                       .reset = in->reset};
    for (int i = 0; i < INPUTS; i++)
        v.in[i] = dense_tensor(&inputs, i);
    v.outputs = v.B * v.L * v.H * v.P, v.states = v.B * v.H * v.P * v.N;
    v.h0 = dense_array(in->h0, v.states);
    return v;
}

// A head at a token: the quantities of the formulas, and where its rows are.
struct token {
    const double *x, *b, *c;
    double raw, delta, a, decay;
    bool reset, held; // held: the clamp holds dt
};

static struct token token_at(const struct values *v, int64_t b, int64_t t, int64_t h)
{
    int64_t row = b * v->L + t, group = h / (v->H / v->G);
    struct token k = {v->in[X] + (row * v->H + h) * v->P,
                      v->in[B_] + (row * v->G + group) * v->N,
                      v->in[C_] + (row * v->G + group) * v->N,
                      v->in[DT][row * v->H + h] + v->in[DT_BIAS][h],
                      0,
                      -exp(v->in[A_LOG][h]),
                      0,
                      v->reset && v->reset[row],
                      false};
    double step = softplus(k.raw);
    k.delta = fmin(fmax(step, v->dt_min), v->dt_max);
    k.held = step < v->dt_min || step > v->dt_max;
    k.decay = exp(k.delta * k.a);
    return k;
}

// Runs one head: s[0 …] is the state [P, N] before token 0, s[(t + 1) P N …] that after t; y is [B
// L, H P].
static void head_forward(const struct values *v, int64_t b, int64_t h, double *s, double *y)
{
    int64_t P = v->P, N = v->N;
    memcpy(s, v->h0 + (b * v->H + h) * P * N, (size_t)(P * N) * sizeof *s);
    for (int64_t t = 0; t < v->L; t++) {
        struct token k = token_at(v, b, t, h);
        double *out = y + ((b * v->L + t) * v->H + h) * P;
        for (int64_t p = 0; p < P; p++) {
            out[p] = v->in[D_SKIP][h] * k.x[p];
            for (int64_t n = 0; n < N; n++) {
                double before = k.reset ? 0.0 : s[(t * P + p) * N + n];
                double now = k.decay * before + k.delta * k.x[p] * k.b[n];
                s[((t + 1) * P + p) * N + n] = now;
                out[p] += k.c[n] * now;
            }
        }
    }
}

// Computes y, and h_last and states in the layouts of the op. `states` may be NULL.
static void reference_values(const struct values *v, int64_t chunk, double *y, double *h_last,
                             float *states)
{
    int64_t P = v->P, N = v->N, chunks = (v->L - 1) / chunk + 1;
    double *s = zeros((v->L + 1) * P * N);
    for (int64_t b = 0; b < v->B; b++)
        for (int64_t h = 0; h < v->H; h++) {
            head_forward(v, b, h, s, y);
            for (int64_t i = 0; i < P * N; i++)
                h_last[(b * v->H + h) * P * N + i] = s[v->L * P * N + i];
            for (int64_t i = 0; i < P * N && states; i++)
                for (int64_t k = 0; k < chunks; k++)
                    states[((b * chunks + k) * v->H + h) * P * N + i % N * P + i / N] =
                        (float)s[k * chunk * P * N + i];
        }
}

REFERENCE(ssd_forward)
{
    struct values v = make_values(&a->in);
    double *y = zeros(v.outputs), *h_last = zeros(v.states);
    reference_values(&v, a->in.chunk, y, h_last, a->states);
    store_view(&a->y, y);
    store_array(a->h_last, v.states, h_last, false);
    return DT_OK;
}

static void reference_y(const struct values *v, double *y, double *h_last)
{
    reference_values(v, v->L, y, h_last, NULL);
}

// carry[P N] is dh_last at first and dh0 of the head at the end.
static void head_backward(const struct values *v, const struct dt_view *dy, int64_t b, int64_t h,
                          const double *s, double *const *g, double *carry)
{
    int64_t P = v->P, N = v->N, group = h / (v->H / v->G);
    for (int64_t t = v->L - 1; t >= 0; t--) {
        int64_t row = b * v->L + t;
        struct token k = token_at(v, b, t, h);
        double dlog = 0.0, ddelta = 0.0, *db = g[B_] + (row * v->G + group) * N,
               *dc = g[C_] + (row * v->G + group) * N, *dx = g[X] + (row * v->H + h) * P;
        for (int64_t p = 0; p < P; p++) {
            double dy_p = get_at(dy, row, h * P + p), through = 0.0;
            for (int64_t n = 0; n < N; n++) {
                double dh = dy_p * k.c[n] + carry[p * N + n];
                double before = k.reset ? 0.0 : s[(t * P + p) * N + n];
                dc[n] += dy_p * s[((t + 1) * P + p) * N + n];
                db[n] += k.delta * dh * k.x[p];
                through += dh * k.b[n];
                dlog += k.decay * dh * before;
                carry[p * N + n] = k.reset ? 0.0 : k.decay * dh;
            }
            dx[p] = v->in[D_SKIP][h] * dy_p + k.delta * through;
            ddelta += k.x[p] * through;
            g[D_SKIP][h] += dy_p * k.x[p];
        }
        double draw = (k.held ? 0.0 : k.a * dlog + ddelta) * sigmoid(k.raw);
        g[DT][row * v->H + h] = draw;
        g[DT_BIAS][h] += draw;
        g[A_LOG][h] += dlog * k.delta * k.a;
    }
}

REFERENCE(ssd_backward)
{
    struct values v = make_values(&a->in);
    struct tensors gradients = gradients_of(a);
    double *s = zeros((v.L + 1) * v.P * v.N), *y = zeros(v.outputs), *g[INPUTS];
    double *carry = dense_array(a->dh_last, v.states);
    for (int i = 0; i < INPUTS; i++)
        g[i] = zeros(tensor_size(&gradients, i));
    for (int64_t b = 0; b < v.B; b++)
        for (int64_t h = 0; h < v.H; h++) {
            head_forward(&v, b, h, s, y);
            head_backward(&v, &a->dy, b, h, s, g, carry + (b * v.H + h) * v.P * v.N);
        }
    store_tensors(&gradients, g, a->accumulate);
    store_array(a->dh0, v.states, carry, false);
    return DT_OK;
}

// ---- runs on the tested backend

// Inputs are as large as Mamba-2's: Δ between about 0.01 and 1, A between -0.4 and -7, and states
// of about 1 whatever N is.
static struct op make_op(const struct parity *p __attribute__((unused)), const struct shape *s)
{
    int64_t H = s->heads, E = H * s->P, BC = s->groups * s->N, state = s->batch * E * s->N,
            chunks = (s->length - 1) / s->chunk + 1;
    double each = 1.0 / sqrt(sqrt((double)s->N));
    float *dt_bias = normal(H, 0.5, 8);
    for (int64_t h = 0; h < H; h++)
        dt_bias[h] -= 2.0f;
    struct dt_ssd_inputs in = {.batch = s->batch,
                               .length = s->length,
                               .heads = H,
                               .groups = s->groups,
                               .chunk = s->chunk,
                               .dt_min = s->dt_min,
                               .dt_max = s->dt_max > 0 ? s->dt_max : INFINITY,
                               .x = input(s, E, 9, 1.0, 1),
                               .dt = input(s, H, 1, 1.0, 2),
                               .b = input(s, BC, 3, each, 4),
                               .c = input(s, BC, 8, each, 5),
                               .a_log = normal(H, 0.7, 6),
                               .d_skip = normal(H, 1.0, 7),
                               .dt_bias = dt_bias,
                               .h0 = s->h0 ? normal(state, 1.0, 9) : NULL,
                               .reset = make_reset(s->batch, s->length, s->resets, s->chunk)};
    struct dt_ssd_forward_args f = {.in = in,
                                    .y = output(s, E, 5),
                                    .h_last = guarded(state * 4),
                                    .states = guarded(state * chunks * 4)};
    return (struct op){f,
                       {.in = in,
                        .states = f.states,
                        .dh_last = state_gradient(s, state),
                        .dh0 = first_gradient(s, state),
                        .dy = input(s, E, 2, 1.0, 10),
                        .dx = output(s, E, 7),
                        .ddt = output(s, H, 3),
                        .db = output(s, BC, 4),
                        .dc = output(s, BC, 1),
                        .da_log = gradient_array(H, s->accumulate, 11),
                        .dd_skip = gradient_array(H, s->accumulate, 12),
                        .ddt_bias = gradient_array(H, s->accumulate, 13),
                        .accumulate = s->accumulate}};
}

// fp32 sums of up to some thousand terms are within 1e-5 of a double. Decays are exponentials of
// differences of sums, which round by 2^-24 of the sums. CUDA has other exponentials and other
// orders of sums.
static double tolerance(const struct parity *p)
{
    return p->is_cpu ? 1e-5 : p->model ? 3e-5 : 2e-5;
}

// CUDA, and CPUs with bf16 instructions, round operands of products to bf16 (1.1e-3 root mean
// square), up to three times in a row: X, the state, Σ dM ∘ decay. Measured: 3.7e-3 on CUDA, and on
// the CPU 6.1e-3 in da_log of three heads.
static double in_products(const struct parity *p, dt_dtype type)
{
    return type == DT_BF16 ? 1e-2 : tolerance(p);
}

static void forward(struct parity *p, struct dt_ssd_forward_args *a)
{
    PARITY(p, ssd_forward, a, OTHERS(.norm = in_products(p, a->in.x.dtype)));
}

static void backward(struct parity *p, struct dt_ssd_backward_args *a)
{
    PARITY(p, ssd_backward, a, OTHERS(.norm = in_products(p, a->in.x.dtype)));
}

static double slope_tolerance(const struct parity *p, dt_dtype type,
                              int input __attribute__((unused)))
{
    return in_products(p, type);
}

static void compare(struct parity *p, const struct shape *s)
{
    if (!parity_case(
            p,
            "ssd: B %d L %d H %d G %d P %d N %d chunk %d %s%s%s%s, resets %d, dt %g to %g, dh %u",
            (int)s->batch, (int)s->length, (int)s->heads, (int)s->groups, (int)s->P, (int)s->N,
            (int)s->chunk, dt_dtype_name(s->type), s->h0 ? " h0" : "", s->wide ? " wide" : "",
            s->accumulate ? " +=" : "", s->resets, (double)s->dt_min, (double)s->dt_max, s->dh))
        return;
    struct op op = make_op(p, s);
    forward(p, &op.forward);
    backward(p, &op.backward);
    // At the edge of the clamp there is no derivative.
    if (p->is_cpu && !s->accumulate && s->dt_max == 0 &&
        s->batch * s->length * s->heads * s->P * s->N < 40000)
        check_directions(p, &op.backward);
}

void parity_ssd(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 1, 64, DT_F32, .h0 = false, .dh = DH_LAST | DH0},
        {3, 1, 4, 2, 8, 16, 64, DT_F32, .h0 = true, .resets = AT_END, .dh = DH_LAST | DH0},
        {3, 2, 3, 1, 9, 3, 1, DT_BF16, .h0 = true, .wide = true, .dh = DH_LAST | DH0},
        {1, 77, 1, 1, 64, 128, 64, DT_F32, .h0 = true},
        {3, 77, 4, 2, 8, 1, 32, DT_F32, .wide = true, .accumulate = true, .resets = MANY},
        {1, 64, 2, 1, 16, 16, 64, DT_BF16, .resets = IN_A_ROW},
        {2, 65, 6, 3, 20, 33, 64, DT_F32, .h0 = true, .resets = AT_CHUNKS, .dh = DH0},
        {2, 77, 12, 1, 8, 16, 16, DT_BF16, .h0 = true, .wide = true, .resets = IN_A_ROW,
         .dh = DH_LAST},
        {1, 130, 9, 1, 32, 64, 64, DT_F32, .h0 = true, .accumulate = true, .resets = AT_ZERO},
        {1, 200, 2, 2, 64, 100, 64, DT_BF16, .accumulate = true, .dh = DH_LAST | DH0},
        {1, 77, 2, 1, 80, 130, 33, DT_F32, .h0 = true, .resets = AT_END, .dh = DH_LAST | DH0},
        {1, 40, 1, 1, 130, 256, 64, DT_F32, .h0 = true},
        {2, 77, 3, 1, 8, 5, 32, DT_F32, .h0 = true, .dt_min = 0.1f, .dt_max = 0.2f},
    };
    static const int64_t chunks[] = {1, 7, 16, 33, 77, 1000};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks && !p->model; i++)
        compare(p, &(struct shape){2, 77, 3, 1, 20, 5, chunks[i], DT_F32, .h0 = true,
                                   .resets = i % 2 ? NO_RESETS : IN_A_ROW, .dh = DH_LAST | DH0});
    for (int type = DT_F32; type <= DT_BF16 && p->model; type++)
        compare(p, &(struct shape){2, MODEL_LENGTH, MODEL_INNER / 64, 1, 64, 128,
                                   p->tested[0].op->ssd_chunk, type ? DT_BF16 : DT_F32, .h0 = true,
                                   .dh = DH_LAST | DH0});
    if (p->model)
        return;
    for (int i = 0; i < 2; i++) {
        check_carry(p, &(struct shape){2, 50, 3, 1, 20, 5, 32, DT_F32, .h0 = true, .resets = MANY},
                    i ? 19 : 1, 2e-5);
        check_h_last_over_h0(p,
                             &(struct shape){2, i ? 77 : 1, 2, 2, 8, 16, 32, DT_F32, .h0 = true});
    }
    for (int i = 0; i <= INPUTS; i++)
        check_nan(p, &(struct shape){1, 40, 4, 1, 8, 8, 32, i % 2 ? DT_BF16 : DT_F32, .h0 = true},
                  i);
}

// ---- the gated norm, and the norm without weights

static const double eps = 1e-5;

struct gated_shape {
    int64_t rows, width, groups;
    dt_dtype type;
    bool wide, accumulate, in_place;
};

// Computes g = x silu(z) of a row and group, and returns its rstd.
static double gated_group(const struct dt_view *x, const struct dt_view *z, int64_t row,
                          int64_t from, int64_t width, double *g)
{
    double sum = 0.0;
    for (int64_t i = 0; i < width; i++) {
        double z_i = get_at(z, row, from + i);
        g[i] = get_at(x, row, from + i) * z_i * sigmoid(z_i);
        sum += g[i] * g[i];
    }
    return 1.0 / sqrt(sum / (double)width + eps);
}

REFERENCE(gated_rmsnorm_forward)
{
    int64_t width = a->x.cols / a->groups;
    double *g = zeros(width);
    for (int64_t i = 0; i < a->x.rows * a->groups; i++) {
        int64_t row = i / a->groups, from = i % a->groups * width;
        double rstd = gated_group(&a->x, &a->z, row, from, width, g);
        for (int64_t k = 0; k < width; k++)
            set_at(&a->y, row, from + k, g[k] * rstd * (double)a->weight[from + k]);
        if (a->rstd)
            a->rstd[i] = (float)rstd;
    }
    return DT_OK;
}

REFERENCE(gated_rmsnorm_backward)
{
    int64_t width = a->x.cols / a->groups;
    double *g = zeros(width), *dweight = zeros(a->x.cols);
    for (int64_t i = 0; i < a->x.rows * a->groups; i++) {
        int64_t row = i / a->groups, from = i % a->groups * width;
        double rstd = gated_group(&a->x, &a->z, row, from, width, g), mean = 0.0;
        for (int64_t k = 0; k < width; k++) {
            double dn = get_at(&a->dy, row, from + k) * g[k] * rstd;
            dweight[from + k] += dn;
            mean += dn * (double)a->weight[from + k] / (double)width;
        }
        for (int64_t k = 0; k < width; k++) {
            double x = get_at(&a->x, row, from + k), z = get_at(&a->z, row, from + k);
            double q = get_at(&a->dy, row, from + k) * (double)a->weight[from + k];
            double dg = rstd * (q - g[k] * rstd * mean), s = sigmoid(z);
            set_at(&a->dx, row, from + k, dg * z * s);
            set_at(&a->dz, row, from + k, dg * x * s * (1.0 + z * (1.0 - s)));
        }
    }
    store_array(a->dweight, a->x.cols, dweight, a->accumulate);
    return DT_OK;
}

REFERENCE(rmsnorm_forward)
{
    int64_t width = a->x.cols / a->groups;
    for (int64_t i = 0; i < a->x.rows * a->groups; i++) {
        int64_t row = i / a->groups, from = i % a->groups * width;
        double sum = 0.0;
        for (int64_t k = from; k < from + width; k++)
            sum += get_at(&a->x, row, k) * get_at(&a->x, row, k);
        double rstd = 1.0 / sqrt(sum / (double)width + (double)a->eps);
        for (int64_t k = from; k < from + width; k++)
            set_at(&a->x, row, k, get_at(&a->x, row, k) * rstd);
        if (a->rstd)
            a->rstd[i] = (float)rstd;
    }
    return DT_OK;
}

REFERENCE(rmsnorm_backward)
{
    int64_t width = a->n.cols / a->groups;
    for (int64_t i = 0; i < a->n.rows * a->groups; i++) {
        int64_t row = i / a->groups, from = i % a->groups * width;
        double mean = 0.0;
        for (int64_t k = from; k < from + width; k++)
            mean += get_at(&a->dx, row, k) * get_at(&a->n, row, k) / (double)width;
        for (int64_t k = from; k < from + width; k++)
            set_at(&a->dx, row, k,
                   (double)a->rstd[i] * (get_at(&a->dx, row, k) - get_at(&a->n, row, k) * mean));
    }
    return DT_OK;
}

static void compare_gated(struct parity *p, const struct gated_shape *s)
{
    int64_t stride = aligned_stride(s->type, s->width) + (s->wide ? 24 : 0), rows = s->rows;
    if (!parity_case(p, "gated: rows %d, width %d, groups %d, %s%s%s%s", (int)rows, (int)s->width,
                     (int)s->groups, dt_dtype_name(s->type), s->wide ? " wide" : "",
                     s->accumulate ? " +=" : "", s->in_place ? " in place" : ""))
        return;
    struct dt_view x = normal_view(s->type, rows, s->width, stride, 1.0, 1);
    struct dt_gated_rmsnorm_forward_args f = {
        .groups = s->groups,
        .eps = (float)eps,
        .x = x,
        .z = normal_view(s->type, rows, s->width, stride, 1.5, 2),
        .weight = normal(s->width, 1.0, 3),
        .y = fresh_view(s->type, rows, s->width, stride),
        .rstd = guarded(rows * s->groups * 4)};
    // Sums of squares of a few hundred terms and an exponential differ by a few ulp.
    PARITY(p, gated_rmsnorm_forward, &f, OTHERS(.norm = tolerance(p)));
    struct dt_gated_rmsnorm_backward_args b = {
        .groups = s->groups,
        .x = x,
        .z = f.z,
        .weight = f.weight,
        .rstd = f.rstd,
        .dy = normal_view(s->type, rows, s->width, stride, 1.0, 4),
        .dx = fresh_view(s->type, rows, s->width, stride),
        .dz = fresh_view(s->type, rows, s->width, stride),
        .dweight = gradient_array(s->width, s->accumulate, 5),
        .accumulate = s->accumulate};
    if (s->in_place)
        b.dx = b.dy;
    PARITY(p, gated_rmsnorm_backward, &b, OTHERS(.norm = tolerance(p)));
    struct dt_rmsnorm_forward_args plain = {
        .groups = s->groups,
        .eps = (float)eps,
        .x = normal_view(s->type, rows, s->width, stride, 1.0, 6),
        .rstd = guarded(rows * s->groups * 4)};
    PARITY(p, rmsnorm_forward, &plain, OTHERS(.norm = tolerance(p)));
    struct dt_rmsnorm_backward_args back = {
        .groups = s->groups, .n = plain.x, .rstd = plain.rstd, .dx = b.dy};
    if (s->in_place)
        back.dx = normal_view(s->type, rows, s->width, stride, 1.0, 4);
    // In a group of one column two numbers of about the size of dx cancel.
    PARITY(p, rmsnorm_backward, &back, OTHERS(.each = tolerance(p), .floor = 2));
}

void parity_gated(struct parity *p)
{
    static const struct gated_shape shapes[] = {
        {1, 1, 1, DT_F32, .wide = false},
        {5, 24, 3, DT_F32, .wide = true, .accumulate = true},
        {17, 77, 1, DT_BF16, .wide = true},
        {3, 1536, 1, DT_F32, .accumulate = true},
        {70, 512, 2, DT_BF16, .in_place = true},
        {3, 520, 8, DT_F32, .in_place = true},
        {2, 5000, 1, DT_BF16, .wide = true},
        {3, 8200, 1, DT_F32, .wide = true}, // more columns than shared memory holds
        {1100, 16, 2, DT_F32, .accumulate = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare_gated(p, &shapes[i]);
    for (int type = DT_F32; type <= DT_BF16 && p->model; type++)
        compare_gated(p, &(struct gated_shape){MODEL_LENGTH, MODEL_INNER, 1,
                                               type ? DT_BF16 : DT_F32, .wide = true});
}
