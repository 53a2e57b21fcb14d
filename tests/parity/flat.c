// The ops over flat arrays (cast, accumulate, sum_squares, checksum, update_control, adamw),
// normalize, spin and stamp, with counts on both sides of a thread's and a block's share, aligned
// to 16 bytes and one element off.
#include "parity.h"

#include <float.h>

enum { MOST_ON_SIMT = 5003 }; // more elements than this add no new cases on simt

static bool begin(struct parity *p, const char *op, int64_t n, int64_t off, const char *what)
{
    return parity_case(p, "%s: n %lld at %lld, %s", op, (long long)n, (long long)off, what);
}

// Rounds to the nearest even bf16 in double: 8 significant bits, and the least normal number is
// 2^-126.
static double round_bf16(double x)
{
    int exponent;
    if (x == 0.0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    double unit = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 8);
    return nearbyint(x / unit) * unit;
}

REFERENCE(cast)
{
    for (int64_t i = 0; i < a->n; i++) {
        double x = get(a->x, a->x_type, i);
        set(a->y, a->y_type, i, a->y_type == DT_BF16 ? round_bf16(x) : x);
    }
    return DT_OK;
}

static void compare_cast(struct parity *p, int64_t n, int64_t off, dt_dtype from, dt_dtype to)
{
    // Ties up and down, a carry into the exponent, subnormal numbers, zeros, infinities and NaN.
    const float special[] = {0x1.01p0f, 0x1.03p0f, -0x1.ffp3f, 0x1.8p-133f, 0.0f,      -0.0f,
                             1e-40f,    FLT_MAX,   INFINITY,   -INFINITY,   (float)NAN};
    const uint32_t signalling = 0x7f800001u; // a NaN whose upper half alone is infinity
    enum { SPECIAL = sizeof special / sizeof *special };
    if (!begin(p, "cast", n, off, from == to ? "same" : dt_dtype_name(to)))
        return;
    int64_t unit = dt_dtype_size(from), bytes = (n + off) * dt_dtype_size(to);
    char *x = normal_rows(from, 1, n + off, n + off, 100.0, 1);
    for (int i = 0; i < SPECIAL && n > SPECIAL; i++)
        set(x, from, off + i, (double)special[i]);
    if (n > SPECIAL && from == DT_F32)
        memcpy(x + (off + SPECIAL) * unit, &signalling, sizeof signalling);
    struct dt_cast_args args = {.n = n,
                                .x = x + off * unit,
                                .x_type = from,
                                .y = (char *)guarded(bytes) + off * dt_dtype_size(to),
                                .y_type = to};
    PARITY(p, cast, &args);
    // Also compares the sign of a zero and the payload of a NaN.
    for (int64_t i = 0; i < n && from == to; i++)
        CHECK(memcmp((char *)args.y + i * unit, (const char *)args.x + i * unit, (size_t)unit) == 0,
              "%s: element %lld changed its bits", p->text, (long long)i);
}

REFERENCE(accumulate)
{
    dt_dtype type = a->x_type == DT_F64 ? DT_F64 : DT_F32;
    for (int64_t i = 0; i < a->n; i++)
        set(a->y, type, i, get(a->y, type, i) + get(a->x, a->x_type, i));
    return DT_OK;
}

static void compare_accumulate(struct parity *p, int64_t n, int64_t off, dt_dtype type)
{
    if (!begin(p, "accumulate", n, off, dt_dtype_name(type)))
        return;
    dt_dtype sum = type == DT_F64 ? DT_F64 : DT_F32;
    char *x = normal_rows(type, 1, n + off, n + off, 1.0, 2);
    char *y = normal_rows(sum, 1, n + off, n + off, 1.0, 3);
    struct dt_accumulate_args args = {.n = n,
                                      .x = x + off * dt_dtype_size(type),
                                      .x_type = type,
                                      .y = y + off * dt_dtype_size(sum)};
    PARITY(p, accumulate, &args);
}

REFERENCE(sum_squares)
{
    double *blocks = a->workspace, sum = 0.0;
    for (int64_t i = 0; i < a->n && a->part == DT_SQUARES; i++)
        sum += (double)a->x[i] * (double)a->x[i];
    for (int64_t first = 0; first < a->n && a->part != DT_SQUARES; first += DT_NORM_BLOCK) {
        double *block = &blocks[first / DT_NORM_BLOCK];
        int64_t end = first + DT_NORM_BLOCK < a->n ? first + DT_NORM_BLOCK : a->n;
        if (a->part == DT_SQUARES_BLOCKS)
            *block = 0.0;
        for (int64_t i = first; i < end && a->part == DT_SQUARES_BLOCKS; i++)
            *block += (double)a->x[i] * (double)a->x[i];
        sum += *block;
    }
    if (a->part != DT_SQUARES_BLOCKS)
        *a->sum = sum;
    return DT_OK;
}

// Sums are in double and in another order: at most a rounding of 2^-53 for each addition in a
// block. `bad` replaces one element.
static double compare_sum_squares(struct parity *p, int64_t n, int64_t off, float bad)
{
    if (!parity_case(p, "sum_squares: n %lld at %lld, one is %g", (long long)n, (long long)off,
                     (double)bad))
        return 0.0;
    float *x = normal(n + off, 1.0, 4) + off;
    for (int64_t i = 0; i < n; i++) // the numbers are the same wherever the array begins
        x[i] = (float)(i % 97) / 97.0f;
    if (bad != 0.0f)
        x[n / 2] = bad;
    struct dt_sum_squares_args args = {.n = n, .x = x, .sum = guarded(sizeof(double))};
    PARITY(p, sum_squares, &args, OUT(sum, .each = DT_NORM_BLOCK * 0x1p-53, .floor = 1e-30));
    return *args.sum;
}

// Sums of blocks and then their total must have the bits of a single call.
static void compare_halves_of_sum(struct parity *p, int64_t n)
{
    int64_t blocks = (n + DT_NORM_BLOCK - 1) / DT_NORM_BLOCK;
    double whole = compare_sum_squares(p, n, 0, 0.0f);
    if (!parity_case(p, "sum_squares: blocks and total, n %lld", (long long)n))
        return;
    float *x = normal(n, 1.0, 4);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i % 97) / 97.0f;
    struct dt_sum_squares_args args = {.n = n,
                                       .part = DT_SQUARES_BLOCKS,
                                       .x = x,
                                       .workspace = guarded((size_t)blocks * sizeof(double)),
                                       .workspace_bytes = blocks * (int64_t)sizeof(double)};
    PARITY(p, sum_squares, &args, OUT(workspace, .each = DT_NORM_BLOCK * 0x1p-53));
    args.part = DT_SQUARES_TOTAL;
    args.x = NULL;
    args.sum = guarded(sizeof(double));
    PARITY(p, sum_squares, &args, OUT(sum, .each = (double)blocks * 0x1p-53));
    CHECK(*args.sum == whole || !runs_all(p), "%s: %.17g, not %.17g", p->text, *args.sum, whole);
}

static void compare_sums(struct parity *p)
{
    const int64_t squares[] = {0, 1, 5, 2047, DT_NORM_BLOCK, DT_NORM_BLOCK + 3};
    // The square of the last one overflows fp32.
    const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    for (int i = 0; i < 6; i++) {
        double aligned = compare_sum_squares(p, squares[i], 0, 0.0f);
        double moved = compare_sum_squares(p, squares[i], 1, 0.0f);
        CHECK(aligned == moved || !runs_all(p), "%s: other bits where it is not aligned", p->text);
    }
    for (int i = 0; i < 4; i++)
        compare_sum_squares(p, 2047, 0, bad[i]);
    compare_halves_of_sum(p, 3 * DT_NORM_BLOCK + 5);
    p->one_run = true; // more blocks than the second launch on CUDA has threads
    if (!p->is_cpu)
        compare_sum_squares(p, 513 * (int64_t)DT_NORM_BLOCK + 1, 0, 0.0f);
    p->one_run = false;
}

REFERENCE(checksum)
{
    *a->sum = 0;
    for (int64_t i = a->n - 1; i >= 0; i--) {
        uint32_t bits;
        memcpy(&bits, a->x + i, sizeof bits);
        *a->sum += bits * (2 * (uint64_t)i + 1);
    }
    return DT_OK;
}

enum change { AS_IT_IS, SIGN, ORDER };

static uint64_t compare_checksum(struct parity *p, int64_t n, int64_t off, enum change change)
{
    if (!parity_case(p, "checksum: n %lld at %lld, change %d", (long long)n, (long long)off,
                     (int)change))
        return 0;
    float *x = normal(n + off, 1.0, 4) + off;
    if (n > 7)
        x[7] = change == SIGN ? -0.0f : 0.0f;
    if (change == ORDER) {
        float first = x[0];
        x[0] = x[n - 1], x[n - 1] = first;
    }
    struct dt_checksum_args args = {.n = n, .x = x, .sum = guarded(sizeof(uint64_t))};
    PARITY(p, checksum, &args);
    return *args.sum;
}

static void compare_checksums(struct parity *p)
{
    const int64_t sizes[] = {0, 1, 5, 2047, DT_NORM_BLOCK, DT_NORM_BLOCK + 3};
    for (int i = 0; i < 6; i++) {
        uint64_t sum = compare_checksum(p, sizes[i], 0, AS_IT_IS);
        bool all = runs_all(p) && sizes[i] > 7;
        for (enum change change = SIGN; change <= ORDER && sizes[i] > 7; change++)
            CHECK(compare_checksum(p, sizes[i], 0, change) != sum || !all, "%s: the same sum",
                  p->text);
        compare_checksum(p, sizes[i], 1, AS_IT_IS);
    }
}

REFERENCE(update_control)
{
    struct dt_update_control *c = a->control;
    double correction = a->expected / a->sum->counted;
    c->counted = a->sum->counted;
    c->loss = a->sum->loss / c->counted;
    c->grad_norm = sqrt(*a->sum_squares) * correction;
    double clip = (double)a->grad_clip;
    double shrink = clip > 0.0 ? fmin(1.0, clip / (c->grad_norm + 1e-6)) : 1.0;
    c->grad_scale = (float)(correction * shrink);
    c->lr = *a->lr;
    c->skip = !isfinite(c->loss) || !isfinite(c->grad_norm) || c->counted == 0.0;
    c->skipped_in_a_row = c->skip ? c->skipped_in_a_row + 1 : 0;
    if (c->skip)
        return DT_OK;
    c->updates++;
    c->bias1 = (float)(1.0 - pow((double)a->beta1, (double)c->updates));
    c->bias2 = (float)(1.0 - pow((double)a->beta2, (double)c->updates));
    return DT_OK;
}

// expm1, log and sqrt of two libraries differ by a few roundings of double and then of float.
static void compare_update_control(struct parity *p, double loss, double counted, double squares,
                                   float clip)
{
    const struct dt_loss_sum sum = {.loss = loss, .counted = counted};
    const float lr = 1e-3f;
    const struct dt_update_control before = {.updates = 4, .skipped_in_a_row = 2, .bias1 = 0.5f};
    if (!parity_case(p, "update_control: loss %g, counted %g, squares %g, clip %g", loss, counted,
                     squares, (double)clip))
        return;
    struct dt_update_control *control = guarded_copy(&before, sizeof before);
    struct dt_update_control_args args = {.sum = guarded_copy(&sum, sizeof sum),
                                          .sum_squares = guarded_copy(&squares, sizeof squares),
                                          .expected = 100.0,
                                          .lr = guarded_copy(&lr, sizeof lr),
                                          .beta1 = 0.9f,
                                          .beta2 = 0.95f,
                                          .grad_clip = clip,
                                          .control = control};
    bool skip = !(isfinite(loss) && isfinite(squares) && counted > 0.0);
#define PART(member, type_, n, ...)                                                                \
    OUT(control, .part = true, .from = offsetof(struct dt_update_control, member), .type = type_,  \
        .width = n, __VA_ARGS__)
    PARITY(p, update_control, &args, PART(loss, DT_F64, 1, .each = 1e-14),
           PART(grad_norm, DT_F64, 1, .each = 1e-14), PART(counted, DT_F64, 1),
           PART(updates, DT_I64, 1), PART(lr, DT_F32, 1),
           PART(grad_scale, DT_F32, !skip, .each = 0x1p-22),
           PART(bias1, DT_F32, 2, .each = 0x1p-22), PART(skip, DT_I32, 2));
    CHECK(control->skip == skip && control->updates == (skip ? 4 : 5), "%s: skip %d, updates %d",
          p->text, control->skip, (int)control->updates);
}

REFERENCE(adamw)
{
    const struct dt_update_control *c = a->control;
    const struct dt_adamw_span *span = a->spans;
    double b1 = (double)a->beta1, b2 = (double)a->beta2, lr = (double)c->lr;
    for (int64_t i = 0; i < a->n && !c->skip; i++) {
        while (a->first + i >= span->end)
            span++;
        double g = (double)a->grad[i] * (double)c->grad_scale, w = (double)a->weight[i];
        double m = b1 * (double)a->m[i] + (1.0 - b1) * g;
        double v = b2 * (double)a->v[i] + (1.0 - b2) * g * g;
        w -= lr * (double)span->decay * w;
        w -= lr * (double)span->lr * (m / (double)c->bias1) /
             (sqrt(v / (double)c->bias2) + (double)a->eps);
        a->m[i] = (float)m, a->v[i] = (float)v, a->weight[i] = (float)w;
        if (a->copy)
            a->copy[i] = dt_f32_to_bf16((float)w);
        if (a->average)
            a->average[i] = (float)((double)a->average[i] +
                                    (1.0 - (double)a->average_decay) * (w - (double)a->average[i]));
    }
    return DT_OK;
}

// fp32 rounds values near 1 about ten times by 2^-24, and a weight near the middle of two bf16
// values may become the other one. The spans end inside a thread's elements, after one element, and
// at blocks.
static void compare_adamw(struct parity *p, int64_t n, int64_t off, bool copy, bool average,
                          bool skip)
{
    // The arrays may be a piece of those that spans divide.
    const int64_t first = average ? n + 3 * off : 0;
    const struct dt_adamw_span spans[] = {
        {first / 2, 0.9f, 2.0f},         {first, 0.8f, 3.0f},
        {first + n / 3, 0.1f, 1.0f},     {first + n / 3 + 1, 0.0f, 0.25f},
        {first + n - n / 5, 0.3f, 0.5f}, {first + n + off, 0.0f, 1.0f}};
    const struct dt_update_control control = {.lr = 0.02f,
                                              .grad_scale = skip ? (float)NAN : 0.7f,
                                              .bias1 = 0.271f,
                                              .bias2 = 0.142625f,
                                              .skip = skip};
    const size_t before = average && n > 1 ? 0 : 2; // the first two spans end before the piece
    if (!begin(p, "adamw", n, off,
               skip      ? "skipped"
               : average ? "with average"
               : copy    ? "with copy"
                         : "no copy"))
        return;
    struct dt_adamw_args args = {
        .n = n,
        .first = first,
        .weight = normal(n + off, 1.0, 5) + off,
        .m = normal(n + off, 0.1, 6) + off,
        .v = normal(n + off, 0.1, 7) + off,
        .grad = normal(n + off, 1.0, 8) + off,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .n_spans = 6 - before,
        .spans = guarded_copy(spans + before, sizeof spans - before * sizeof *spans),
        .control = guarded_copy(&control, sizeof control)};
    if (copy)
        args.copy = (dt_bf16 *)normal_rows(DT_BF16, 1, n + off, n + off, 1.0, 9) + off;
    if (average)
        args.average = normal(n + off, 1.0, 10) + off;
    args.average_decay = average ? 0.875f : 0.0f;
    for (int64_t i = 0; i < n; i++)
        args.v[i] = fabsf(args.v[i]);
    double each = skip ? 0.0 : 1e-6;
    PARITY(p, adamw, &args, OTHERS(.each = each));
    for (int64_t i = 0; i < n && copy && !skip; i++)
        CHECK(args.copy[i] == dt_f32_to_bf16(args.weight[i]), "%s: copy %lld is not its weight",
              p->text, (long long)i);
}

REFERENCE(muon)
{
    const struct dt_update_control *c = a->control;
    double keep = (double)a->momentum;
    if ((a->part == DT_MUON_MOMENTUM || a->part == DT_MUON_APPLY) && c->skip)
        return DT_OK;
    for (int64_t i = 0; i < a->n; i++) {
        double x = 0;
        if (a->part == DT_MUON_MOMENTUM) {
            double g = (1 - keep) * (double)a->u[i] * (double)c->grad_scale;
            double m = keep * (double)a->m[i] + g;
            a->m[i] = (float)m;
            a->u[i] = (float)(keep * m + g);
        } else if (a->part == DT_MUON_START) {
            set(a->x, a->type, i, (double)a->u[i] / fmax(sqrt(*a->sum), 1e-7));
        } else if (a->part == DT_MUON_POLYNOMIAL) {
            x = -4.7750 * get(a->gram, a->type, i) + 2.0315 * get(a->square, a->type, i);
            set(a->p, a->type, i, x + (i / a->side == i % a->side ? 3.4445 : 0));
        } else {
            double w = (double)a->weight[i], lr = (double)c->lr;
            w -= lr * (double)a->decay * w + lr * (double)a->rate * get(a->x, a->type, i);
            a->weight[i] = (float)w;
            if (a->copy)
                a->copy[i] = dt_f32_to_bf16((float)w);
            if (a->average)
                a->average[i] +=
                    (float)((1.0 - (double)a->average_decay) * (w - (double)a->average[i]));
        }
    }
    return DT_OK;
}

// The same tolerance as adamw; a value that is rounded to bf16 may become a neighbour, 2^-8 of it
// away.
static void compare_muon(struct parity *p, enum dt_muon part, int64_t side, int64_t off,
                         dt_dtype type, bool skip, double sum)
{
    static const char *const names[] = {"momentum", "start", "polynomial", "apply"};
    const int64_t n = part == DT_MUON_POLYNOMIAL ? side * side : side, all = n + off;
    const struct dt_update_control control = {.lr = 0.02f, .grad_scale = 0.7f, .skip = skip};
    if (!parity_case(p, "muon: %s, n %lld at %lld, %s%s, sum %g", names[part], (long long)n,
                     (long long)off, dt_dtype_name(type), skip ? ", skipped" : "", sum))
        return;
    const int64_t size = dt_dtype_size(type);
    char *x = normal_rows(type, 1, all, all, 1.0, 5),
         *gram = normal_rows(type, 1, all, all, 1.0, 6),
         *square = normal_rows(type, 1, all, all, 1.0, 7), *poly = guarded(all * size);
    struct dt_muon_args args = {.part = part,
                                .n = n,
                                .side = part == DT_MUON_POLYNOMIAL ? side : 1,
                                .type = type,
                                .m = normal(all, 0.1, 1) + off,
                                .u = normal(all, 1.0, 2) + off,
                                .sum = guarded_copy(&sum, sizeof sum),
                                .x = x + off * size,
                                .gram = gram + off * size,
                                .square = square + off * size,
                                .p = poly + off * size,
                                .weight = normal(all, 1.0, 3) + off,
                                .momentum = 0.95f,
                                .decay = 0.1f,
                                .rate = 1.5f,
                                .average_decay = 0.875f,
                                .control = guarded_copy(&control, sizeof control)};
    if (off > 0) {
        args.copy = (dt_bf16 *)normal_rows(DT_BF16, 1, all, all, 1.0, 9) + off;
        args.average = normal(all, 1.0, 10) + off;
    }
    bool rounds = (part == DT_MUON_START || part == DT_MUON_POLYNOMIAL) && type == DT_BF16;
    PARITY(p, muon, &args,
           OTHERS(.each = skip     ? 0.0
                          : rounds ? 0x1p-7
                                   : 1e-6,
                  .floor = rounds ? 0.01 : 0.0));
}

static void compare_muons(struct parity *p)
{
    static const int64_t sides[] = {1, 3, 16, 37, 64};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        for (int64_t off = 0; off < 2; off++)
            for (int bf16 = 0; bf16 < 2; bf16++)
                for (enum dt_muon part = DT_MUON_MOMENTUM; part <= DT_MUON_APPLY; part++)
                    compare_muon(p, part, sides[i], off, bf16 ? DT_BF16 : DT_F32, i == 3 && bf16,
                                 2.5);
    compare_muon(p, DT_MUON_START, 5, 0, DT_F32, false, 0.0);
    // Several blocks on the CPU.
    compare_muon(p, DT_MUON_MOMENTUM, 40000, 0, DT_F32, false, 1.0);
    compare_muon(p, DT_MUON_START, 40000, 1, DT_BF16, false, 1.0);
    compare_muon(p, DT_MUON_APPLY, 40000, 1, DT_F32, false, 1.0);
}

// Spans that end before n are an error of the caller, which the CPU finds.
static void check_short_spans(struct parity *p)
{
    if (!p->is_cpu || !parity_case(p, "adamw: spans that end too early"))
        return;
    float x[10] = {0};
    struct dt_adamw_span span = {9, 0.0f, 1.0f};
    struct dt_update_control control = {.bias1 = 1.0f, .bias2 = 1.0f};
    struct dt_adamw_args args = {.n = 10,
                                 .weight = x,
                                 .m = x,
                                 .v = x,
                                 .grad = x,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.9f,
                                 .eps = 1e-8f,
                                 .n_spans = 1,
                                 .spans = &span,
                                 .control = &control};
    CHECK_INT(dt_adamw(&p->tested[0], &args, NULL), DT_MACHINE);
    CHECK(strstr(dt_error_current()->message, "9") != NULL, "the message lacks the span's end");
    dt_error_clear();
}

REFERENCE(commit)
{
    if (!a->control->skip)
        memcpy(a->to, a->from, (size_t)a->bytes);
    return DT_OK;
}

static void compare_commit(struct parity *p, int64_t n, bool skip)
{
    const struct dt_update_control control = {.skip = skip};
    if (!begin(p, "commit", n, 0, skip ? "skipped" : "done"))
        return;
    struct dt_commit_args args = {.bytes = n * DT_COMMIT_UNIT,
                                  .from = normal(4 * n, 1.0, 11),
                                  .to = normal(4 * n, 1.0, 12),
                                  .control = guarded_copy(&control, sizeof control)};
    PARITY(p, commit, &args);
}

REFERENCE(spin)
{
    for (int64_t i = 0; i < a->n; i++) {
        double x = 0.5 + (double)(i % DT_SPIN_STARTS) / (2 * DT_SPIN_STARTS);
        for (int64_t k = 0; k < a->rounds; k++)
            x = a->kind == DT_SPIN_EXP    ? exp(-x)
                : a->kind == DT_SPIN_EXP2 ? exp2(-x)
                                          : x * (double)a->a + (double)a->b;
        a->y[i] = (float)x;
    }
    return DT_OK;
}

// Each round at least halves a difference (fma: multiplies it by a), so that about two roundings of
// the last rounds remain. With no round, the values are the initial ones, bit by bit.
static void compare_spin(struct parity *p, int64_t n, int64_t rounds)
{
    for (int kind = DT_SPIN_EXP; kind <= DT_SPIN_FMA; kind++) {
        if (!parity_case(p, "spin: kind %d, n %lld, %lld rounds", kind, (long long)n,
                         (long long)rounds))
            continue;
        struct dt_spin_args args = {.kind = (enum dt_spin_kind)kind,
                                    .n = n,
                                    .rounds = rounds,
                                    .a = 0.5f,
                                    .b = 0.25f,
                                    .y = guarded(n * 4)};
        PARITY(p, spin, &args, OUT(y, .each = rounds ? 0x1p-22 : 0.0));
    }
}

REFERENCE(stamp)
{
    (void)a; // a clock cannot be compared
    return DT_OK;
}

// Two stamps: the clock advances and the counter counts, also in pinned memory of the host.
static void check_stamp(struct parity *p)
{
    const struct dt_backend *backend = &p->tested[0];
    uint64_t *times = NULL, read[2] = {0, 0};
    int64_t *count = NULL;
    p->done[OP_stamp] = true;
    if (!parity_case(p, "stamp: two"))
        return;
    CHECK_OK(dt_alloc(backend, sizeof read, &times));
    CHECK_OK(dt_alloc_host(backend, sizeof *count, &count));
    *count = 41;
    for (int i = 0; i < 2; i++) {
        struct dt_stamp_args args = {.time = times + i, .count = count};
        CHECK_OK(dt_stamp(backend, &args, p->stream));
    }
    CHECK_OK(dt_to_host(backend, read, times, sizeof read, p->stream));
    CHECK_OK(dt_stream_sync(backend, p->stream));
    CHECK_INT(*count, 43);
    CHECK(read[0] > 0 && read[1] >= read[0], "the clock went from %llu to %llu",
          (unsigned long long)read[0], (unsigned long long)read[1]);
    dt_free(backend, times);
    dt_free_host(backend, count);
}

static void compare_arrays(struct parity *p, int64_t n, int64_t off)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16};
    compare_accumulate(p, n, off, DT_F64);
    for (int i = 0; i < 2; i++) {
        compare_accumulate(p, n, off, types[i]);
        for (int j = 0; j < 2; j++)
            compare_cast(p, n, off, types[i], types[j]);
    }
    for (int k = 0; k < 4 && n >= 3; k++)
        compare_adamw(p, n, off, k != 1, k >= 2, k == 3);
}

// Computes in fp32 as the formula says, so that values on the border of two integers are equal.
REFERENCE(quantize)
{
    for (int64_t i = 0; i < a->x.rows; i++) {
        float most = 0;
        bool finite = true;
        for (int64_t j = 0; j < a->x.cols; j++) {
            most = fmaxf(most, fabsf((float)get_at(&a->x, i, j)));
            finite = finite && isfinite(get_at(&a->x, i, j));
        }
        most = finite ? most : NAN;
        volatile float scale = most / 127.0f,
                       inverse = most >= DT_QUANTIZE_LEAST ? 127.0f / most : most * 0.0f;
        for (int64_t j = 0; j < a->x.cols; j++) {
            volatile float scaled = (float)get_at(&a->x, i, j) * inverse;
            float q = rintf(scaled);
            volatile float back = q * scale;
            double value = a->y.dtype == DT_I8 ? (finite ? (double)q + 0.0 : 0) : (double)back;
            set_at(&a->y, i, j, value);
        }
        if (a->scale)
            a->scale[i] = scale;
    }
    return DT_OK;
}

static void compare_quantize(struct parity *p, int64_t rows, int64_t cols, dt_dtype from,
                             dt_dtype to, double special)
{
    if (!parity_case(p, "quantize: %lld x %lld %s to %s, a value of %g", (long long)rows,
                     (long long)cols, dt_dtype_name(from), dt_dtype_name(to), special))
        return;
    struct dt_quantize_args a = {.x = normal_view(from, rows, cols, cols + 3, 5.0, 1),
                                 .y = fresh_view(to, rows, cols, cols + 5),
                                 .scale = guarded(rows * (int64_t)sizeof(float))};
    for (int64_t j = 0; j < cols; j++) // a row of zeros, and halves, which round to even
        set_at(&a.x, rows / 2, j, 0);
    for (int64_t j = 0; j < cols && rows > 3; j++)
        set_at(&a.x, 3, j, j == 0 ? 127 : (double)(j % 120) + 0.5);
    set_at(&a.x, rows - 1, cols / 2, special);
    PARITY(p, quantize, &a);
}

static void compare_quantizes(struct parity *p)
{
    static const int64_t sizes[][2] = {{1, 1}, {5, 7}, {4, 128}, {9, 131}, {3, 1000}, {70, 300}};
    static const double specials[] = {1.0, -90.0, 0.0, (double)INFINITY, (double)NAN};
    compare_quantize(p, 1, 1, DT_F32, DT_F32, 1e-37); // the inverse of the scale overflows
    compare_quantize(p, 1, 1, DT_F32, DT_I8, 1e-37);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int bytes = 0; bytes < 2; bytes++)
                compare_quantize(p, sizes[i][0], sizes[i][1], bf16 ? DT_BF16 : DT_F32,
                                 bytes  ? DT_I8
                                 : bf16 ? DT_BF16
                                        : DT_F32,
                                 specials[i % 5]);
}

REFERENCE(normalize)
{
    for (int64_t r = 0; r < a->x.rows; r++)
        for (int64_t i = 0; i < a->x.cols; i++) {
            double x = get_at(&a->x, r, i) - (double)a->mean[i];
            set_at(&a->y, r, i, a->keep && !a->keep[r] ? 0.0 : x / (double)a->deviation[i]);
        }
    return DT_OK;
}

// Both backends round at the same places: after the difference, after the quotient, and to storage.
static void compare_normalize(struct parity *p, int64_t rows, int64_t cols, int64_t gap,
                              dt_dtype from, dt_dtype to, bool masked)
{
    if (!parity_case(p, "normalize: %lld x %lld, gap %lld, %s to %s%s", (long long)rows,
                     (long long)cols, (long long)gap, dt_dtype_name(from), dt_dtype_name(to),
                     masked ? ", masked" : ""))
        return;
    float *deviation = normal(cols, 30.0, 2);
    for (int64_t i = 0; i < cols; i++)
        deviation[i] = fabsf(deviation[i]) + 0x1p-7f;
    uint8_t *keep = masked ? guarded(rows) : NULL;
    for (int64_t r = 0; masked && r < rows; r++)
        keep[r] = r % 3 != 1;
    struct dt_normalize_args a = {.x = normal_view(from, rows, cols, cols + gap, 100.0, 1),
                                  .mean = normal(cols, 60.0, 3),
                                  .deviation = deviation,
                                  .keep = keep,
                                  .y = fresh_view(to, rows, cols, cols + gap)};
    PARITY(p, normalize, &a, OUT(y, .each = p->is_cpu ? 0x1p-22 : 0, .floor = 1e-6));
}

// Columns around a thread's eight and a block's 1,024; rows around a thread's eight, and more than
// one thread of the CPU takes.
static void compare_normalizes(struct parity *p)
{
    static const int64_t sizes[][3] = {{1, 1, 0},    {3, 8, 0},     {9, 24, 16},  {17, 21, 3},
                                       {2, 1032, 0}, {11, 1025, 7}, {131, 131, 5}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 4; form++)
            compare_normalize(p, sizes[i][0], sizes[i][1], sizes[i][2], form & 1 ? DT_F32 : DT_U8,
                              form & 2 ? DT_BF16 : DT_F32, (i + (size_t)form) % 2);
}

void parity_flat(struct parity *p)
{
    static const int64_t counts[] = {0,     1,     3,     4,     7,     8,    9,
                                     1023,  1024,  1025,  2047,  2048,  2053, 5003,
                                     16384, 16385, 65535, 65537, 200003};
    const int64_t model = (int64_t)MODEL_VOCAB * MODEL_WIDTH + 5;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && !p->model; i++)
        for (int64_t off = 0; off < 2 && (p->is_cpu || counts[i] <= MOST_ON_SIMT); off++)
            compare_arrays(p, counts[i], off);
    for (size_t i = 1; i < sizeof counts / sizeof *counts && !p->model; i++)
        for (int64_t rounds = 0; rounds < 12 && counts[i] <= MOST_ON_SIMT; rounds += 3)
            compare_spin(p, counts[i], rounds);
    for (size_t i = 0; i < sizeof counts / sizeof *counts && !p->model; i++)
        for (int skip = 0; skip < 2 && (p->is_cpu || counts[i] <= MOST_ON_SIMT); skip++)
            compare_commit(p, counts[i], skip);
    if (p->model) {
        compare_commit(p, model, false);
        compare_arrays(p, model, 0);
        compare_spin(p, model, 5);
    }
    compare_sums(p);
    compare_checksums(p);
    compare_quantizes(p);
    compare_normalizes(p);
    compare_update_control(p, 250.0, 90.0, 16.0, 1.0f);
    compare_update_control(p, 160.0, 80.0, 0.01, 1.0f); // the norm is below the clip
    compare_update_control(p, 250.0, 100.0, 16.0, 0.0f);
    compare_update_control(p, 0.0, 0.0, 1.0, 1.0f);
    compare_update_control(p, (double)NAN, 90.0, 1.0, 1.0f);
    compare_update_control(p, (double)INFINITY, 90.0, 1.0, 1.0f);
    compare_update_control(p, 160.0, 80.0, (double)NAN, 1.0f);
    compare_update_control(p, 250.0, 90.0, (double)INFINITY, 1.0f);
    compare_muons(p);
    check_short_spans(p);
    check_stamp(p);
}
