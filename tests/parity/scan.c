// The selective scan: shapes around a warp's channels, a tile's tokens and segments; one and two
// channels per lane; every width of states and both kinds of kernel (the plain one runs N above 64
// forward and above 32 backward) with whole and partial pieces; any chunk; resets anywhere.
#include "parity.h"

#include "blocks.h"
#include "kernels/cuda.h"
#include "kernels/scan_cut.h"

struct shape {
    int64_t batch, length, channels, state, chunk;
    dt_dtype type;
    bool h0, wide, accumulate; // wide: strides larger than rows
    enum resets resets;
    unsigned dh; // DH_LAST: has dh_last; DH0: has dh0
};

// ---- the double-precision form: one channel after another, all states kept

static const char name[] = "scan";
enum { U, DELTA, Z, B_, C_, A_LOG, D_SKIP, DT_BIAS, INPUTS }; // inputs with gradients
static const char *const input_name[] = {"u", "delta", "z", "b", "c", "a_log", "d_skip", "dt_bias"};
enum { SHOWS = 1 << U | 1 << DELTA | 1 << Z };
#define FORGET(forward) ((forward)->states = (forward)->s = NULL)
typedef struct dt_scan_inputs inputs_args;
typedef struct dt_scan_forward_args forward_args;
typedef struct dt_scan_backward_args backward_args;

// A problem in dense doubles, or the gradients of one.
struct values {
    int64_t B, L, D, N, outputs, states; // outputs: elements of y; states: of h0
    const uint8_t *reset;
    double *in[INPUTS], *h0;
};

#include "recurrence.h"

static struct tensors inputs_of(const struct dt_scan_inputs *in)
{
    int64_t D = in->u.cols, N = in->b.cols;
    return (struct tensors){
        .n_views = 5,
        .view = {&in->u, &in->delta, &in->z, &in->b, &in->c},
        .n_arrays = 3,
        .array = {{in->a_log, D * N}, {in->d_skip, D}, {in->dt_bias, D}},
    };
}

static struct tensors gradients_of(const struct dt_scan_backward_args *a)
{
    struct tensors gradients = inputs_of(&a->in);
    const struct dt_view *const views[] = {&a->du, &a->ddelta, &a->dz, &a->db, &a->dc};
    memcpy(gradients.view, views, sizeof views);
    gradients.array[0].data = a->da_log;
    gradients.array[1].data = a->dd_skip;
    gradients.array[2].data = a->ddt_bias;
    return gradients;
}

static struct values make_values(const struct dt_scan_inputs *in)
{
    struct tensors inputs = inputs_of(in);
    struct values v = {
        .B = in->batch, .L = in->length, .D = in->u.cols, .N = in->b.cols, .reset = in->reset};
    for (int i = 0; i < INPUTS; i++)
        v.in[i] = dense_tensor(&inputs, i);
    v.outputs = v.B * v.L * v.D, v.states = v.B * v.D * v.N;
    v.h0 = dense_array(in->h0, v.states);
    return v;
}

static bool is_reset(const struct values *v, int64_t row)
{
    return v->reset && v->reset[row];
}

// Runs one channel: h[n] is the state before token 0, h[(t + 1) N + n] that after t; s[t] is the
// sum over states.
static void channel_forward(const struct values *v, int64_t b, int64_t d, double *h, double *s)
{
    int64_t N = v->N, D = v->D;
    memcpy(h, v->h0 + (b * D + d) * N, (size_t)N * sizeof *h);
    for (int64_t t = 0; t < v->L; t++) {
        int64_t row = b * v->L + t;
        double u = v->in[U][row * D + d];
        double delta = softplus(v->in[DELTA][row * D + d] + v->in[DT_BIAS][d]);
        s[t] = v->in[D_SKIP][d] * u;
        for (int64_t n = 0; n < N; n++) {
            double before = is_reset(v, row) ? 0.0 : h[t * N + n];
            double decay = exp(-delta * exp(v->in[A_LOG][d * N + n]));
            h[(t + 1) * N + n] = decay * before + delta * u * v->in[B_][row * N + n];
            s[t] += v->in[C_][row * N + n] * h[(t + 1) * N + n];
        }
    }
}

// Computes y [B L, D], and h_last, states and kept_s in the layouts of the op. `states` and kept_s
// may be NULL.
static void reference_values(const struct values *v, int64_t chunk, double *y, double *h_last,
                             float *states, float *kept_s)
{
    int64_t L = v->L, D = v->D, N = v->N, chunks = (L - 1) / chunk + 1;
    double *h = zeros((L + 1) * N), *s = zeros(L);
    for (int64_t b = 0; b < v->B; b++)
        for (int64_t d = 0; d < D; d++) {
            channel_forward(v, b, d, h, s);
            for (int64_t t = 0; t < L; t++) {
                int64_t i = (b * L + t) * D + d;
                y[i] = s[t] * v->in[Z][i] * sigmoid(v->in[Z][i]);
                if (kept_s)
                    kept_s[i] = (float)s[t];
            }
            for (int64_t n = 0; n < N; n++)
                h_last[(b * D + d) * N + n] = h[L * N + n];
            for (int64_t n = 0; n < N && states; n++)
                for (int64_t k = 0; k < chunks; k++)
                    states[((b * chunks + k) * N + n) * D + d] = (float)h[k * chunk * N + n];
        }
}

REFERENCE(scan_forward)
{
    struct values v = make_values(&a->in);
    double *y = zeros(v.outputs), *h_last = zeros(v.states);
    reference_values(&v, a->in.chunk, y, h_last, a->states, a->s);
    store_view(&a->y, y);
    store_array(a->h_last, v.states, h_last, false);
    return DT_OK;
}

static void reference_y(const struct values *v, double *y, double *h_last)
{
    reference_values(v, v->L, y, h_last, NULL, NULL);
}

// carry[N] is dh_last at first and dh0 of the channel at the end.
static void channel_backward(const struct values *v, const struct dt_view *dy, int64_t b, int64_t d,
                             const double *h, const double *s, double *const *g, double *carry)
{
    int64_t D = v->D, N = v->N;
    for (int64_t t = v->L - 1; t >= 0; t--) {
        int64_t row = b * v->L + t, i = row * D + d;
        double u = v->in[U][i], x = v->in[DELTA][i] + v->in[DT_BIAS][d], delta = softplus(x);
        double z = v->in[Z][i], gate = sigmoid(z), dy_t = get_at(dy, row, d);
        double ds = dy_t * z * gate, ddelta = 0.0, du = ds * v->in[D_SKIP][d];
        for (int64_t n = 0; n < N; n++) {
            double log_a = -exp(v->in[A_LOG][d * N + n]), decay = exp(delta * log_a);
            double before = is_reset(v, row) ? 0.0 : h[t * N + n];
            double in_b = v->in[B_][row * N + n], dh = ds * v->in[C_][row * N + n] + carry[n];
            g[C_][row * N + n] += ds * h[(t + 1) * N + n];
            g[B_][row * N + n] += dh * delta * u;
            du += delta * dh * in_b;
            ddelta += dh * (log_a * decay * before + u * in_b);
            g[A_LOG][d * N + n] += dh * before * decay * delta * log_a;
            carry[n] = is_reset(v, row) ? 0.0 : decay * dh;
        }
        g[U][i] = du;
        g[Z][i] = dy_t * s[t] * gate * (1.0 + z * (1.0 - gate));
        g[DELTA][i] = ddelta * sigmoid(x);
        g[D_SKIP][d] += ds * u;
        g[DT_BIAS][d] += ddelta * sigmoid(x);
    }
}

REFERENCE(scan_backward)
{
    struct values v = make_values(&a->in);
    struct tensors gradients = gradients_of(a);
    double *h = zeros((v.L + 1) * v.N), *s = zeros(v.L), *g[INPUTS];
    double *carry = dense_array(a->dh_last, v.states);
    for (int i = 0; i < INPUTS; i++)
        g[i] = zeros(tensor_size(&gradients, i));
    for (int64_t b = 0; b < v.B; b++)
        for (int64_t d = 0; d < v.D; d++) {
            channel_forward(&v, b, d, h, s);
            channel_backward(&v, &a->dy, b, d, h, s, g, carry + (b * v.D + d) * v.N);
        }
    store_tensors(&gradients, g, a->accumulate);
    store_array(a->dh0, v.states, carry, false);
    return DT_OK;
}

// ---- runs on the tested backend

// Inputs are as large as Mamba's: Δ between about 0.01 and 1, A between -0.4 and -7.
static struct op make_op(const struct parity *p, const struct shape *s)
{
    int64_t D = s->channels, N = s->state, chunks = (s->length - 1) / s->chunk + 1;
    float *dt_bias = normal(D, 0.5, 8);
    for (int64_t d = 0; d < D; d++)
        dt_bias[d] -= 2.0f;
    struct dt_scan_inputs in = {.batch = s->batch,
                                .length = s->length,
                                .chunk = s->chunk,
                                .u = input(s, D, 9, 1.0, 1),
                                .delta = input(s, D, 1, 1.0, 2),
                                .z = input(s, D, 20, 1.5, 3),
                                .b = input(s, N, 3, 1.0, 4),
                                .c = input(s, N, 8, 1.0, 5),
                                .a_log = normal(D * N, 0.7, 6),
                                .d_skip = normal(D, 1.0, 7),
                                .dt_bias = dt_bias,
                                .h0 = s->h0 ? normal(s->batch * D * N, 1.0, 9) : NULL,
                                .reset = make_reset(s->batch, s->length, s->resets, s->chunk)};
    struct dt_scan_forward_args f = {.in = in,
                                     .y = output(s, D, 5),
                                     .h_last = guarded(s->batch * D * N * 4),
                                     .states = guarded(s->batch * chunks * N * D * 4)};
    if (p->tested[0].op->scan_keeps_s)
        f.s = guarded(s->batch * s->length * D * 4);
    return (struct op){f,
                       {.in = in,
                        .states = f.states,
                        .s = f.s,
                        .dh_last = state_gradient(s, s->batch * D * N),
                        .dh0 = first_gradient(s, s->batch * D * N),
                        .dy = input(s, D, 2, 1.0, 10),
                        .du = output(s, D, 7),
                        .ddelta = output(s, D, 3),
                        .dz = output(s, D, 30),
                        .db = output(s, N, 4),
                        .dc = output(s, N, 1),
                        .da_log = gradient_array(D * N, s->accumulate, 11),
                        .dd_skip = gradient_array(D, s->accumulate, 12),
                        .ddt_bias = gradient_array(D, s->accumulate, 13),
                        .accumulate = s->accumulate}};
}

// fp32 sums of up to some thousand terms are within 5e-6 of a double. CUDA has other exponentials
// and other orders of sums, and starts segments from products of exponentials: 1e-5, and somewhat
// more with a model's thousands of channels and tokens. bf16 results may be rounded up or down.
static double tolerance(const struct parity *p)
{
    return p->is_cpu ? 5e-6 : p->model ? 3e-5 : 1e-5;
}

static void forward(struct parity *p, struct dt_scan_forward_args *a)
{
    PARITY(p, scan_forward, a, OTHERS(.norm = tolerance(p)));
}

static void backward(struct parity *p, struct dt_scan_backward_args *a)
{
    PARITY(p, scan_backward, a, OTHERS(.norm = tolerance(p)));
}

static double slope_tolerance(const struct parity *p, dt_dtype type, int input)
{
    return stored(input <= C_ ? type : DT_F32, tolerance(p));
}

static void compare(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "scan: B %d L %d D %d N %d chunk %d %s%s%s%s, resets %d, dh %u",
                     (int)s->batch, (int)s->length, (int)s->channels, (int)s->state, (int)s->chunk,
                     dt_dtype_name(s->type), s->h0 ? " h0" : "", s->wide ? " wide" : "",
                     s->accumulate ? " +=" : "", s->resets, s->dh))
        return;
    struct op op = make_op(p, s);
    forward(p, &op.forward);
    backward(p, &op.backward);
    if (p->is_cpu && !s->accumulate && s->batch * s->length * s->channels < 20000)
        check_directions(p, &op.backward);
}

// The CPU performs the same operations in forward whatever the chunk is.
static void check_chunks(struct parity *p)
{
    static const int64_t chunks[] = {1, 7, 32, 33, 1000};
    struct shape s = {2, 77, 20, 5, 77, DT_F32, .resets = IN_A_ROW};
    compare(p, &s);
    if (!p->is_cpu || !parity_case(p, "scan: y with any chunk"))
        return;
    struct op whole = make_op(p, &s);
    run(p, &whole);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        s.chunk = chunks[i];
        struct op op = make_op(p, &s);
        run(p, &op);
        CHECK(same_bits(op.forward.y.data, whole.forward.y.data), "chunk %d: y differs",
              (int)s.chunk);
    }
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        s.chunk = chunks[i];
        compare(p, &s);
    }
}

// Runs one position from a state, as in inference.
static void check_step(struct parity *p)
{
    static const struct shape shapes[] = {
        {3, 1, 37, 16, 32, DT_F32, .h0 = true, .resets = AT_ZERO},
        {5, 1, 20, 7, 32, DT_BF16, .h0 = true, .wide = true},
        {2, 1, 300, 64, 32, DT_F32, .resets = AT_ZERO},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        if (!parity_case(p, "scan: one position, D %d N %d, no states, resets %d", (int)s->channels,
                         (int)s->state, s->resets))
            continue;
        struct op op = make_op(p, s);
        op.forward.states = op.forward.s = NULL;
        forward(p, &op.forward);
        op.forward.s = guarded(s->batch * s->channels * 4);
        forward(p, &op.forward);
    }
}

// A NaN in token 0 reaches y of its own channel in its segment and the next, and nothing beyond a
// reset.
static void check_nan_and_reset(struct parity *p, int64_t state, enum resets resets)
{
    const struct shape s = {1, 77, 16, state, 32, DT_F32, .h0 = true, .resets = resets};
    bool passes = resets == NO_RESETS;
    if (!parity_case(p, "scan: a NaN in u, N %d, resets %d", (int)state, resets))
        return;
    struct op op = make_op(p, &s);
    ((float *)op.forward.in.u.data)[5] = NAN;
    run(p, &op);
    const float *y = op.forward.y.data;
    CHECK(isnan(y[5]) && count_nans(y, DT_F32, 0, 16) == 1, "%s: not in its y alone", p->text);
    CHECK(isnan(y[76 * 16 + 5]) == passes, "%s: the last y is %g", p->text, (double)y[76 * 16 + 5]);
    CHECK(passes || count_nans(y, DT_F32, 3 * 16, 74 * 16) == 0, "%s: passes", p->text);
    CHECK(passes || count_nans(op.backward.du.data, DT_F32, 3 * 16, 74 * 16) == 0,
          "%s: passes backward", p->text);
}

enum { WHOLE, SEGMENTS, BOTH, CUTS };

static void note_cut(const struct shape *s, int64_t unit, const scan_costs *costs,
                     const scan_device *device, bool (*seen)[CUTS])
{
    const int64_t widths[2] = {32, 64};
    scan_cut cut =
        scan_choose_cut(s->batch, s->length, s->channels, widths, s->chunk, unit, costs, device);
    seen[cut.width > 32][cut.segments == 1 ? WHOLE : cut.whole == 0 ? SEGMENTS : BOTH] = true;
}

// The shapes must include every kind of cut for a device, with one channel per lane and with two.
static void check_cuts(const struct shape *shapes, size_t count, const scan_device *device)
{
    enum { BACKWARD_TILE = 8, FORWARD_TILE = 16 };
    bool seen[2][2][CUTS] = {{{false}}};
    for (size_t i = 0; i < count; i++)
        if (shapes[i].state <= 16 && shapes[i].type == DT_BF16) {
            note_cut(&shapes[i], FORWARD_TILE, &SCAN_FORWARD_COSTS, device, seen[0]);
            note_cut(&shapes[i], BACKWARD_TILE, &SCAN_BACKWARD_COSTS, device, seen[1]);
        }
    for (int i = 0; i < 2 * 2 * CUTS; i++)
        CHECK(seen[i / CUTS / 2][i / CUTS % 2][i % CUTS],
              "no %s with %d channels a lane and cut %d for %d SMs",
              i < 2 * CUTS ? "forward" : "backward", i / CUTS % 2 + 1, i % CUTS, (int)device->sms);
}

#ifndef PARITY_SIMT
// Compares an H200 with what scan_cut.h says of it, and reports the numbers of other devices.
static void report_blocks(const struct parity *p)
{
    struct dt_device_info info;
    struct blocks_measured found;
    int64_t shared_bytes;
    int forward = dt_cuda_scan_forward_held();
    int backward = dt_cuda_scan_backward_held(&shared_bytes);
    CHECK_INT(dt_backend_info(&p->tested[0], &info), DT_OK);
    printf("Blocks: a multiprocessor (%s) holds %d of scan_forward and %d of scan_backward; "
           "scan_cut.h counts on %d and %d\n",
           info.features, forward, backward, SCAN_FORWARD_RESIDENT, SCAN_BACKWARD_RESIDENT);
    CHECK(blocks_measure(shared_bytes, &found), "blocks cannot be measured");
    printf("Blocks: of %lld bytes of shared memory CUDA computes %d, measured were %d\n",
           (long long)shared_bytes, found.expected, found.least);
    CHECK(found.least >= found.expected, "fewer run than fit");
    if (strncmp(info.features, "sm_90,", 6) == 0)
        CHECK(forward >= SCAN_FORWARD_RESIDENT && backward >= SCAN_BACKWARD_RESIDENT,
              "fewer blocks than scan_cut.h counts on");
}
#endif

// With 132 SMs a GPU cuts sequences which the simulated device does not, and with the shapes for
// the simulated device it uses one channel per lane only. compute-sanitizer runs every fifth case,
// which includes the 130M model's kernels.
static void compare_on_gpu(struct parity *p)
{
    static const struct shape shapes[] = {
        {31, 33, 392, 16, 8, DT_BF16, .h0 = true, .resets = MANY},
        {31, 36, 389, 16, 8, DT_BF16, .h0 = true, .wide = true, .resets = AT_ZERO,
         .dh = DH_LAST | DH0},
        {31, 35, 392, 8, 8, DT_BF16, .h0 = true, .resets = IN_A_ROW},
        {31, 35, 392, 11, 16, DT_BF16, .resets = AT_CHUNKS, .dh = DH0},
        {31, 43, 384, 16, 8, DT_BF16, .accumulate = true, .dh = DH_LAST | DH0},
        {31, 33, 392, 16, 8, DT_F32, .h0 = true, .resets = MANY},
        {31, 33, 390, 7, 32, DT_F32, .h0 = true, .accumulate = true, .dh = DH_LAST},
        {23, 228, 104, 16, 8, DT_BF16, .h0 = true, .resets = IN_A_ROW, .dh = DH_LAST | DH0},
        {23, 228, 104, 16, 8, DT_F32, .resets = AT_END},
        {19, 252, 872, 16, 8, DT_BF16, .h0 = true, .dh = DH_LAST | DH0},
        {30, 255, 264, 16, 8, DT_BF16, .h0 = true, .resets = MANY},
        {1, 141, 88, 16, 8, DT_BF16, .resets = AT_ZERO, .dh = DH0},
        {1, 35, 88, 16, 8, DT_BF16, .h0 = true, .dh = DH_LAST | DH0},
    };
    check_cuts(shapes, sizeof shapes / sizeof *shapes, &SCAN_LARGE_DEVICE);
#ifdef PARITY_SIMT // would take too long there
    (void)p;
#else
    if (runs_all(p)) // not under compute-sanitizer, which needs multiprocessors too
        report_blocks(p);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        compare(p, &shapes[i]);
#endif
}

void parity_scan(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 16, 16, 32, DT_F32, .h0 = false},
        {1, 1, 5, 1, 1, DT_F32, .h0 = true, .wide = true, .resets = AT_ZERO, .dh = DH_LAST | DH0},
        {1, 2, 1, 1, 2, DT_F32, .h0 = false},
        {1, 77, 5, 3, 32, DT_F32, .wide = true, .resets = MANY, .dh = DH0},
        {2, 77, 48, 16, 32, DT_F32, .h0 = true, .wide = true, .accumulate = true, .resets = MANY,
         .dh = DH_LAST | DH0},
        {2, 100, 131, 8, 7, DT_F32, .h0 = true, .resets = AT_CHUNKS},
        {1, 130, 300, 16, 100, DT_F32, .h0 = true, .resets = IN_A_ROW, .dh = DH_LAST},
        {7, 20, 70, 16, 1, DT_F32, .accumulate = true, .resets = AT_ZERO, .dh = DH_LAST | DH0},
        {1, 700, 24, 16, 16, DT_F32, .h0 = true},
        {1, 77, 129, 9, 1000, DT_F32, .h0 = true, .dh = DH_LAST | DH0},
        {2, 40, 130, 17, 7, DT_F32, .h0 = true, .wide = true, .accumulate = true, .resets = MANY},
        {1, 9, 16, 256, 1000, DT_F32, .h0 = true, .dh = DH0},
        {2, 70, 33, 32, 20, DT_F32, .h0 = true, .wide = true, .resets = MANY, .dh = DH_LAST | DH0},
        {2, 50, 34, 64, 16, DT_F32, .h0 = true, .resets = AT_CHUNKS},
        {10, 70, 33, 16, 16, DT_F32, .h0 = true, .wide = true, .resets = MANY, .dh = DH_LAST},
        {13, 35, 45, 7, 5, DT_F32, .h0 = true, .dh = DH_LAST | DH0},
        {1, 77, 5, 3, 32, DT_BF16, .wide = true, .resets = MANY},
        {2, 77, 48, 16, 32, DT_BF16, .h0 = true, .accumulate = true, .resets = MANY,
         .dh = DH_LAST | DH0},
        {2, 33, 160, 8, 1000, DT_BF16, .h0 = true, .wide = true, .resets = AT_ZERO},
        {13, 100, 40, 16, 16, DT_BF16, .h0 = true, .resets = MANY, .dh = DH0},
        {5, 35, 128, 16, 16, DT_BF16, .h0 = true, .resets = MANY, .dh = DH_LAST | DH0},
        {10, 100, 40, 12, 8, DT_BF16, .h0 = true, .resets = IN_A_ROW},
        {13, 65, 20, 16, 8, DT_BF16, .resets = MANY, .dh = DH_LAST},
        {1, 465, 37, 16, 16, DT_BF16, .resets = MANY, .dh = DH_LAST | DH0},
        {2, 90, 50, 16, 8, DT_BF16, .h0 = true, .resets = AT_ZERO},
        {10, 50, 20, 16, 16, DT_BF16, .resets = MANY, .dh = DH_LAST | DH0},
        {2, 130, 64, 16, 16, DT_BF16, .h0 = true, .resets = MANY},
        {2, 45, 40, 64, 16, DT_BF16, .resets = MANY, .dh = DH0},
        {2, 45, 40, 32, 16, DT_BF16, .resets = MANY, .dh = DH_LAST | DH0},
        {1, 33, 20, 33, 16, DT_BF16, .h0 = true, .resets = IN_A_ROW},
    };
    // The CPU's blocks of channels, and several of its blocks of tokens.
    static const struct shape on_cpu[] = {
        {17, 20, 130, 16, 1, DT_F32, .accumulate = true},
        {2, 700, 24, 16, 32, DT_F32, .h0 = true, .dh = DH_LAST},
        {4, 33, 160, 8, 1000, DT_BF16, .h0 = true, .dh = DH_LAST | DH0}};
    static const int64_t states[] = {8, 16, 20, 70};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (int i = 0; i < 3 && p->is_cpu; i++)
        compare(p, &on_cpu[i]);
    for (int k = 0; k < 4 && p->model; k++)
        compare(p, &(struct shape){1 + k % 2, MODEL_LENGTH, MODEL_INNER, MODEL_STATE,
                                   p->tested[0].op->scan_chunk, k / 2 ? DT_BF16 : DT_F32, true,
                                   true, true, MANY, DH_LAST | DH0});
    if (!p->is_cpu)
        check_cuts(shapes, sizeof shapes / sizeof *shapes, &SCAN_SMALL_DEVICE);
    if (!p->is_cpu && !p->model)
        compare_on_gpu(p);
    check_chunks(p);
    if (p->is_cpu)
        check_carry(p, &(struct shape){2, 50, 20, 4, 32, DT_F32, .h0 = true, .resets = MANY}, 19,
                    0);
    check_h_last_over_h0(p, &(struct shape){2, 77, 21, 16, 32, DT_F32, .h0 = true});
    check_step(p);
    for (int which = 0; which <= INPUTS; which++) {
        check_nan(p, &(struct shape){1, 40, 16, 8, 32, DT_F32, .h0 = true}, which);
        check_nan(p, &(struct shape){1, 40, 16, 8, 32, DT_BF16, .h0 = true}, which);
    }
    for (int i = 0; i < 4; i++) {
        check_nan_and_reset(p, states[i], NO_RESETS);
        check_nan_and_reset(p, states[i], IN_A_ROW);
    }
}
