// The ops over flat arrays, at the size of a model's embedding, aligned and one element off.
#include "parity.h"

// Copies guarded by bands, of what is no array of numbers.
static void *guarded_copy(const void *from, int64_t bytes)
{
    return memcpy(guarded(bytes), from, (size_t)bytes);
}

// Both round the same numbers in the same way.
static void compare_cast(struct parity *p, int64_t n, dt_dtype from, dt_dtype to)
{
    struct dt_cast_args args = {.n = n,
                                .x = many_rows(from, 1, n, n, 100.0, 1),
                                .x_type = from,
                                .y = guarded(n * dt_dtype_size(to)),
                                .y_type = to};
    const struct parity_field fields[] = {
        FIELD_IN(cast, x), FIELD_OUT(cast, y, to, 1, n, n, 0.0, 0), {0}};
    parity_compare(p, PARITY_cast, fields, &args, dt_dtype_name(from));
    release((void *)(uintptr_t)args.x, "x");
    RELEASE(args.y);
}

// One addition an element: the same bits.
static void compare_accumulate(struct parity *p, int64_t n, dt_dtype type)
{
    struct dt_accumulate_args args = {
        .n = n, .x = many_rows(type, 1, n, n, 1.0, 2), .x_type = type, .y = many(n, 1.0, 3)};
    const struct parity_field fields[] = {
        FIELD_IN(accumulate, x), FIELD_OUT(accumulate, y, DT_F32, 1, n, n, 0.0, 0), {0}};
    parity_compare(p, PARITY_accumulate, fields, &args, dt_dtype_name(type));
    release((void *)(uintptr_t)args.x, "x");
    RELEASE(args.y);
}

// Sums in double in another order: a rounding of 2^-53 for each of a block's additions at most.
static void compare_sum_squares(struct parity *p, int64_t n)
{
    struct dt_sum_squares_args args = {
        .n = n, .x = many(n, 1.0, 4), .sum = guarded(sizeof(double))};
    const struct parity_field fields[] = {
        FIELD_IN(sum_squares, x),
        FIELD_OUT(sum_squares, sum, DT_F64, 1, 1, 1, DT_NORM_BLOCK * 0x1p-53, 0),
        FIELD_WORKSPACE(sum_squares),
        {0}};
    parity_compare(p, PARITY_sum_squares, fields, &args, "fp32");
    release((void *)(uintptr_t)args.x, "x");
    RELEASE(args.sum);
}

// A few roundings between two libraries' expm1, log and sqrt, of double and then of float.
static void compare_update_control(struct parity *p)
{
    const struct dt_loss_sum sum = {250.0, 90.0};
    const double squares = 16.0;
    const float lr = 1e-3f;
    const struct dt_update_control control = {.updates = 6, .skipped_in_a_row = 2, .bias1 = 0.5f};
    struct dt_update_control_args args = {.sum = guarded_copy(&sum, sizeof sum),
                                          .sum_squares = guarded_copy(&squares, sizeof squares),
                                          .expected = 100.0,
                                          .lr = guarded_copy(&lr, sizeof lr),
                                          .beta1 = 0.9f,
                                          .beta2 = 0.95f,
                                          .grad_clip = 1.0f,
                                          .control = guarded_copy(&control, sizeof control)};
    enum { DOUBLES = 3, FLOATS = 4, INTS = 2 };
    const struct parity_field fields[] = {
        FIELD_IN(update_control, sum),
        FIELD_IN(update_control, sum_squares),
        FIELD_IN(update_control, lr),
        FIELD_OUT(update_control, control, DT_F64, 1, DOUBLES, DOUBLES, 1e-14, 0),
        {0}};
    parity_compare(p, PARITY_update_control, fields, &args, "loss and norm");
    struct parity_field rest[] = {FIELD_IN(update_control, sum),
                                  FIELD_IN(update_control, sum_squares),
                                  FIELD_IN(update_control, lr),
                                  FIELD_OUT(update_control, control, DT_F32, 1, FLOATS, FLOATS,
                                            0x1p-22, offsetof(struct dt_update_control, lr)),
                                  {0}};
    parity_compare(p, PARITY_update_control, rest, &args, "what adamw reads");
    rest[3].type = DT_I32, rest[3].width = rest[3].stride = INTS, rest[3].tolerance = 0.0;
    rest[3].skip = offsetof(struct dt_update_control, skip);
    parity_compare(p, PARITY_update_control, rest, &args, "skip");
    release((void *)(uintptr_t)args.sum, "sum");
    release((void *)(uintptr_t)args.sum_squares, "sum_squares");
    release((void *)(uintptr_t)args.lr, "lr");
    RELEASE(args.control);
}

static float *positive(int64_t n, double scale, uint32_t seed)
{
    float *x = many(n, scale, seed);
    for (int64_t i = 0; i < n; i++)
        x[i] = fabsf(x[i]);
    return x;
}

// The one contracts to FMA where the other does not: a few roundings. A weight near the middle of
// two bf16 may round to the other: 2^-8 of a few.
static void compare_adamw(struct parity *p, int64_t n, bool with_copy)
{
    const struct dt_adamw_span spans[] = {
        {n / 3, 0.1f}, {n / 3 + 1, 0.0f}, {n - n / 5, 0.3f}, {n, 0.0f}};
    const struct dt_update_control control = {
        .lr = 0.01f, .grad_scale = 0.7f, .bias1 = 0.3f, .bias2 = 0.1f};
    struct dt_adamw_args args = {.n = n,
                                 .weight = many(n, 1.0, 5),
                                 .m = many(n, 0.1, 6),
                                 .v = positive(n, 0.1, 7),
                                 .grad = many(n, 1.0, 8),
                                 .copy = with_copy ? guarded(n * 2) : NULL,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .n_spans = 4,
                                 .spans = guarded_copy(spans, sizeof spans),
                                 .control = guarded_copy(&control, sizeof control)};
    const struct parity_field fields[] = {FIELD_IN(adamw, grad),
                                          FIELD_IN(adamw, spans),
                                          FIELD_IN(adamw, control),
                                          FIELD_OUT(adamw, weight, DT_F32, 1, n, n, 1e-6, 0),
                                          FIELD_OUT(adamw, m, DT_F32, 1, n, n, 1e-6, 0),
                                          FIELD_OUT(adamw, v, DT_F32, 1, n, n, 1e-6, 0),
                                          FIELD_OUT(adamw, copy, DT_BF16, 1, n, n, 1e-3, 0),
                                          {0}};
    parity_compare(p, PARITY_adamw, fields, &args, with_copy ? "with copy" : "fp32");
    RELEASE(args.weight);
    RELEASE(args.m);
    RELEASE(args.v);
    release((void *)(uintptr_t)args.grad, "grad");
    release((void *)(uintptr_t)args.spans, "spans");
    release((void *)(uintptr_t)args.control, "control");
    if (args.copy)
        RELEASE(args.copy);
}

// Each round brings what two forms round differently together by half or more.
static void compare_spin(struct parity *p, int64_t n)
{
    for (int kind = DT_SPIN_EXP; kind <= DT_SPIN_FMA; kind++) {
        struct dt_spin_args args = {.kind = (enum dt_spin_kind)kind,
                                    .n = n,
                                    .rounds = 5,
                                    .a = 0.5f,
                                    .b = 0.25f,
                                    .y = guarded(n * 4)};
        const struct parity_field fields[] = {FIELD_OUT(spin, y, DT_F32, 1, n, n, 0x1p-21, 0), {0}};
        parity_compare(p, PARITY_spin, fields, &args, "5 rounds");
        RELEASE(args.y);
    }
}

// Two stamps of a stream: the clock goes on, the counter counts, also where it lies in the host's
// pinned memory.
static void compare_stamp(struct parity *p)
{
    const struct dt_device_table *table = p->cuda.table;
    struct dt_device *device = p->cuda.device;
    uint64_t *times = NULL, read[2] = {0, 0};
    int64_t *count = NULL;
    check_ok(table->alloc(device, sizeof read, (void **)&times), "alloc");
    check_ok(table->alloc_host(device, sizeof *count, (void **)&count), "alloc_host");
    *count = 41;
    for (int i = 0; i < 2; i++) {
        struct dt_stamp_args args = {.time = times + i, .count = count};
        check_ok(dt_stamp(&p->cuda, &args, p->stream), "stamp");
    }
    check_ok(table->to_host(device, read, times, sizeof read, p->stream), "to_host");
    check_ok(table->stream_sync(device, p->stream), "stream_sync");
    CHECK_INT(*count, 43);
    CHECK(read[0] > 0 && read[1] >= read[0], "the clock went from %llu to %llu",
          (unsigned long long)read[0], (unsigned long long)read[1]);
    table->free(device, times);
    table->free_host(device, count);
    p->done[PARITY_stamp] = true;
}

int parity_flat(struct parity *p, const struct parity_sizes *s)
{
    int64_t n = s->vocab * s->d_model + 5; // not a multiple of a thread's share
    compare_cast(p, n, DT_F32, DT_BF16);
    compare_cast(p, n, DT_BF16, DT_F32);
    compare_accumulate(p, n, s->type);
    compare_sum_squares(p, n);
    compare_update_control(p);
    compare_adamw(p, n, s->type == DT_BF16);
    compare_spin(p, n);
    compare_stamp(p);
    return test_end();
}
