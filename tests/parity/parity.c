// The driver of the parity program: opens the backends, runs each case on them and compares.
// parity.h and tests/README.md describe it.
#include "parity.h"

#include <stdarg.h>

#ifdef PARITY_SIMT
#include "simt/simt_backend.h"
#endif

enum { DEVICE_LOST = 3 }; // exit code

// ---- cases

// After an error of a kernel nothing else works in this process, so the next process begins after
// this case.
static void check_device(const struct parity *p)
{
    if (!p->stream || dt_stream_sync(&p->tested[0], p->stream) == DT_OK)
        return;
    fprintf(stderr, "%s: %s\nthe device is lost in case %d\n", p->text, dt_error_current()->message,
            p->cases);
    exit(DEVICE_LOST);
}

// An array of zeros() that belongs to the case.
struct given {
    struct given *next;
    double x[];
};
static struct given *given;

static void release_case(void)
{
    release_all();
    while (given) {
        struct given *next = given->next;
        free(given);
        given = next;
    }
}

bool parity_case(struct parity *p, const char *format, ...)
{
    va_list values;
    check_device(p);
    release_case();
    va_start(values, format);
    vsnprintf(p->text, sizeof p->text, format, values);
    va_end(values);
    p->cases++;
    if (p->list)
        printf("%4d  %s\n", p->cases, p->text);
    size_t used = strlen(p->text);
    snprintf(p->text + used, sizeof p->text - used, " (case %d)", p->cases);
    return !p->list && (p->only_case == 0 || p->only_case == p->cases) &&
           p->cases >= p->first_case && p->cases % p->every == 0;
}

// ---- the arrays of an args struct

// A pointer in the args, and how its array is compared.
struct field {
    const char *name;
    size_t at;
    bool out;
    enum dt_dtype type;
    int64_t rows, width, stride;
    const struct parity_out *how; // NULL: values must be equal
    size_t from;                  // bytes before the compared part
    int array;                    // its index; -1: the pointer is NULL
    int64_t offset;               // bytes from the array's start
};

struct array {
    char *host; // guarded; several fields may point into it
    int outs;   // how many fields the op writes
    const struct field *out;
};

struct call {
    struct parity *p;
    const struct op_form *form;
    const struct parity_out *outs;
    int n_outs;
    void *args;
    bool has_workspace; // beside the arrays of the op's rows
    struct field fields[FIELDS_MOST];
    int n_fields;
    struct array arrays[FIELDS_MOST];
    int n_arrays;
};

static void **pointer_at(void *args, size_t at)
{
    return (void **)(void *)((char *)args + at);
}

static void add_field(struct call *call, const struct dt_op_row *row, const struct parity_out *how)
{
    const struct dt_view *view = &row->field.view;
    struct field *field = &call->fields[call->n_fields++];
    *field = (struct field){.name = row->field.name,
                            .at = row->field.at,
                            .out = row->role & DT_ROLE_OUT,
                            .type = row->type,
                            .rows = how && how->rows ? how->rows : row->rows,
                            .width = row->cols,
                            .stride = view->stride,
                            .how = how,
                            .array = -1};
    if (row->field.is_view)
        field->at += offsetof(struct dt_view, data);
    if (how && how->part)
        field->type = how->type, field->width = how->width, field->from = how->from;
    if (strcmp(field->name, "workspace") == 0)
        call->has_workspace = false;
    if (!view->data)
        return;
    char *host = guarded_around(view->data);
    for (field->array = 0; field->array < call->n_arrays; field->array++)
        if (call->arrays[field->array].host == host)
            break;
    if (field->array == call->n_arrays)
        call->arrays[call->n_arrays++] = (struct array){.host = host};
    field->offset = (char *)view->data - host;
    if (field->out)
        call->arrays[field->array].outs++, call->arrays[field->array].out = field;
}

static dt_status collect_row(void *context, const struct dt_op_row *row)
{
    struct call *call = context;
    const struct parity_out *others = NULL;
    int before = call->n_fields;
    if (row->kind != DT_ROW_ARRAY || !row->role)
        return DT_OK;
    for (int i = 0; i < call->n_outs && row->role & DT_ROLE_OUT; i++) {
        if (!call->outs[i].field[0])
            others = &call->outs[i];
        else if (strcmp(call->outs[i].field, row->field.name) == 0)
            add_field(call, row, &call->outs[i]);
    }
    if (call->n_fields == before)
        add_field(call, row, others);
    return DT_OK;
}

static void collect_arrays(struct call *call)
{
    check_ok(call->form->visit(&call->p->tested[0], call->args, collect_row, call),
             call->form->name);
    for (int i = 0; i < call->n_outs; i++) {
        int named = 0;
        for (int k = 0; k < call->n_fields; k++)
            named += call->fields[k].how == &call->outs[i];
        CHECK(named == 1 || !call->outs[i].field[0], "%s writes no %s", call->form->name,
              call->outs[i].field);
    }
}

// ---- runs on the tested backend

static void set_workspace(const struct call *call, void *args, void *workspace, int64_t bytes)
{
    memcpy((char *)args + call->form->workspace_bytes_at, &bytes, sizeof bytes);
    *pointer_at(args, call->form->workspace_at) = workspace;
}

static char *to_device(const struct dt_backend *backend, const char *host, struct dt_stream *stream)
{
    int64_t bytes = guarded_size(host) + 2 * GUARD;
    char *memory = NULL;
    CHECK_OK(dt_alloc(backend, bytes, &memory));
    if (!memory)
        exit(1);
    CHECK_OK(dt_to_device(backend, memory, host - GUARD, bytes, stream));
    return memory + GUARD;
}

// Whether anything outside the op's outputs changed.
static bool strayed(const struct array *array, const char *after)
{
    const struct field *f = array->out;
    const char *before = array->host;
    int64_t size = guarded_size(before), at = 0;
    if (array->outs > 1) // parts of one struct
        return false;
    for (int64_t r = 0; f && r < f->rows && f->width > 0; r++) {
        int64_t unit = dt_dtype_size(f->type);
        int64_t row = f->offset + (int64_t)f->from + r * f->stride * unit;
        if (memcmp(before + at, after + at, (size_t)(row - at)) != 0)
            return true;
        at = row + f->width * unit;
    }
    return memcmp(before + at, after + at, (size_t)(size - at)) != 0;
}

// Prepares a workspace of exactly the size that the op requests, unwritten and between guard bands.
// All cases share one allocation, since that of GEMM is large.
static char *prepare_workspace(struct parity *p, int64_t bytes)
{
    const struct dt_backend *backend = &p->tested[0];
    if (!p->workspace || bytes > p->workspace_bytes) {
        dt_free(backend, p->workspace);
        CHECK_OK(dt_alloc(backend, bytes + 2 * GUARD, &p->workspace));
        p->workspace_bytes = bytes;
    }
    CHECK_OK(dt_fill(backend, p->workspace, FRESH_BYTE, bytes + 2 * GUARD, p->stream));
    return p->workspace + GUARD;
}

static bool workspace_whole(const struct parity *p, int64_t bytes)
{
    uint8_t bands[2 * GUARD];
    int wrong = 0;
    const char *high = p->workspace + GUARD + bytes;
    CHECK_OK(dt_to_host(&p->tested[0], bands, p->workspace, GUARD, p->stream));
    CHECK_OK(dt_to_host(&p->tested[0], bands + GUARD, high, GUARD, p->stream));
    CHECK_OK(dt_stream_sync(&p->tested[0], p->stream));
    for (int i = 0; i < 2 * GUARD; i++)
        wrong += bands[i] != FRESH_BYTE;
    return wrong == 0;
}

static void run_tested(const struct call *call, int run, char **got)
{
    struct parity *p = call->p;
    const struct dt_backend *backend = &p->tested[run];
    char args[ARGS_MOST], *device[FIELDS_MOST];
    check_device(p);
    int64_t workspace = call->has_workspace ? call->form->workspace(backend, call->args) : 0;
#ifdef PARITY_SIMT
    simt_set_order((enum simt_order)p->order[run], 77);
#endif
    memcpy(args, call->args, call->form->size);
    for (int i = 0; i < call->n_arrays; i++)
        device[i] = to_device(backend, call->arrays[i].host, p->stream);
    for (int i = 0; i < call->n_fields; i++)
        if (call->fields[i].array >= 0)
            *pointer_at(args, call->fields[i].at) =
                device[call->fields[i].array] + call->fields[i].offset;
    if (call->has_workspace)
        set_workspace(call, args, prepare_workspace(p, workspace), workspace);
    check_ok(call->form->run(backend, args, p->stream), p->text);
    for (int i = 0; i < call->n_arrays; i++) {
        int64_t size = guarded_size(call->arrays[i].host);
        got[i] = guarded(size);
        CHECK_OK(
            dt_to_host(backend, got[i] - GUARD, device[i] - GUARD, size + 2 * GUARD, p->stream));
    }
    CHECK_OK(dt_stream_sync(backend, p->stream));
    for (int i = 0; i < call->n_arrays; i++) {
        const struct array *array = &call->arrays[i];
        const char *name = array->out ? array->out->name : "an input";
        dt_free(backend, device[i] - GUARD);
        CHECK(guards_whole(got[i]), "%s, %s: wrote past the ends of %s", call->form->name, p->text,
              name);
        CHECK(!strayed(array, got[i]), "%s, %s: wrote %s%s", call->form->name, p->text,
              array->out ? "between the rows of " : "to ", name);
    }
    CHECK(!call->has_workspace || workspace_whole(p, workspace),
          "%s, %s: wrote past the ends of its workspace", call->form->name, p->text);
}

// ---- comparisons

static bool near(const struct parity_out *f, dt_dtype type, double slack, double got, double want,
                 int64_t element)
{
    double floor = f->floors ? f->floors[element] : f->floor > 0.0 ? f->floor : 1.0;
    double storage = type == DT_BF16 && f->each > 0.0 ? 2.0 * rounding(DT_BF16) : 0.0;
    if (isnan(want))
        return isnan(got);
    if (isinf(want) || got == want) // equal values; a zero may have another sign
        return got == want && (f->each > 0.0 || signbit(got) == signbit(want));
    return fabs(got - want) <= slack * f->each * fmax(floor, fabs(want)) + storage * fabs(want);
}

// An element that is compared, for the message.
struct element {
    int64_t row, column;
    double got, want;
};

static const char *element_text(const struct element *e, char text[128])
{
    snprintf(text, 128, "[%lld, %lld] is %.9g, not %.9g", (long long)e->row, (long long)e->column,
             e->got, e->want);
    return text;
}

static void compare(const struct call *call, const struct field *f, const char *got,
                    const char *want)
{
    static const struct parity_out exact = {0};
    const struct parity_out *how = f->how ? f->how : &exact;
    double error = 0.0, size = 0.0, worst = 0.0, far = -1.0;
    struct element first = {0}, furthest = {0};
    int64_t wrong = 0, n = f->rows * f->width;
    bool each = how->each > 0.0 || !(how->norm > 0.0);
    for (int64_t r = 0; r < f->rows; r++)
        for (int64_t i = 0; i < f->width; i++) {
            double g = get(got + f->from, f->type, r * f->stride + i);
            double w = get(want + f->from, f->type, r * f->stride + i), d = fabs(g - w);
            const struct element here = {r, i, g, w};
            error += d * d, size += w * w;
            worst = fmax(worst, d - (f->type == DT_BF16 ? 0x1.02p-8 * fabs(w) : 0.0));
            if (g != w && !(isnan(g) && isnan(w)) && !(d <= far))
                far = isnan(d) ? INFINITY : d, furthest = here;
            if (each && !near(how, f->type, call->p->slack, g, w, r * f->width + i) && wrong++ == 0)
                first = here;
        }
    char at[2][128];
    element_text(&first, at[0]), element_text(&furthest, at[1]);
    CHECK(wrong == 0,
          "%s, %s: %lld of %lld x %lld elements of %s are wrong; the first, %s; the furthest, %s",
          call->form->name, call->p->text, (long long)wrong, (long long)f->rows,
          (long long)f->width, f->name, at[0], at[1]);
    double root_mean = sqrt(size / (double)n) + 1e-30, norm = sqrt(error / (size + 1e-30));
    double distance = fmax(norm, worst / root_mean / 30.0);
    double most = stored(f->type, how->norm) * (call->p->model ? 1.0 : call->p->slack);
    CHECK(!(how->norm > 0.0) || (distance <= most && !isnan(norm)),
          "%s, %s: %s, %lld x %lld, is off by %.3g in the norm and %.3g in an element, more than "
          "%.3g; the furthest, %s",
          call->form->name, call->p->text, f->name, (long long)f->rows, (long long)f->width, norm,
          worst / root_mean / 30.0, most, at[1]);
}

static void run_right(const struct call *call)
{
    const struct dt_backend *backend = &call->p->right;
    int64_t bytes = call->form->workspace(backend, call->args);
    char *workspace = guarded(bytes);
    if (call->has_workspace)
        set_workspace(call, call->args, workspace, bytes);
    check_ok(call->form->run(backend, call->args, NULL), call->p->text);
    release(workspace, "the workspace");
}

static int64_t first_difference(const char *a, const char *b)
{
    int64_t at = 0;
    while (at < guarded_size(a) && a[at] == b[at])
        at++;
    return at;
}

void parity_compare(struct parity *p, enum op_index op, const struct parity_out *outs, int n_outs,
                    void *args)
{
    const struct op_form *form = &op_forms[op];
    struct call call = {.form = form, .has_workspace = form->has_workspace};
    char *got[FIELDS_MOST], *again[FIELDS_MOST];
    call.p = p, call.outs = outs, call.n_outs = n_outs, call.args = args;
    collect_arrays(&call);
    int first = p->one_run ? p->cases % p->runs : 0;
    run_tested(&call, first, got);
    for (int run = first + 1; run < p->runs && !p->one_run && !p->run_only; run++) {
        run_tested(&call, run, again);
        for (int i = 0; i < call.n_arrays; i++) {
            CHECK(same_bits(got[i], again[i]),
                  "%s, %s: %s has other bits in run %d, from byte %lld of %lld on", call.form->name,
                  p->text, call.arrays[i].out ? call.arrays[i].out->name : "an input", run + 1,
                  (long long)first_difference(got[i], again[i]), (long long)guarded_size(got[i]));
            release(again[i], "an array");
        }
    }
    if (!p->run_only)
        run_right(&call);
    for (int i = 0; i < call.n_fields && !p->run_only; i++) {
        const struct field *f = &call.fields[i];
        if (f->out && f->array >= 0)
            compare(&call, f, got[f->array] + f->offset, call.arrays[f->array].host + f->offset);
    }
    for (int i = 0; i < call.n_arrays; i++) {
        memcpy(call.arrays[i].host, got[i], (size_t)guarded_size(got[i]));
        release(got[i], "an array");
    }
    p->done[op] = true;
}

// ---- shared by the families

double *zeros(int64_t n)
{
    struct given *array = calloc(1, sizeof *array + (size_t)n * sizeof *array->x);
    if (!array)
        exit(1);
    array->next = given;
    given = array;
    return array->x;
}

double *dense(const void *x, dt_dtype type, int64_t rows, int64_t width, int64_t stride)
{
    double *y = zeros(rows * width);
    for (int64_t r = 0; r < rows && x; r++)
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = get(x, type, r * stride + i);
    return y;
}

double *dense_view(const struct dt_view *x)
{
    return dense(x->data, x->dtype, x->rows, x->cols, x->stride);
}

double *dense_array(const float *x, int64_t n)
{
    return dense(x, DT_F32, 1, n, n);
}

void store_view(const struct dt_view *to, const double *from)
{
    for (int64_t i = 0; i < to->rows * to->cols && to->data; i++)
        set(to->data, to->dtype, i / to->cols * to->stride + i % to->cols, from[i]);
}

void store_array(float *to, int64_t n, const double *from, bool add)
{
    for (int64_t i = 0; i < n && to; i++)
        to[i] = (float)((add ? (double)to[i] : 0.0) + from[i]);
}

float *gradient_array(int64_t n, bool accumulate, uint32_t seed)
{
    return accumulate ? normal(n, 1.0, seed) : guarded(n * 4);
}

int64_t tensor_size(const struct tensors *tensors, int i)
{
    return i < tensors->n_views ? tensors->view[i]->rows * tensors->view[i]->cols
                                : tensors->array[i - tensors->n_views].n;
}

double *dense_tensor(const struct tensors *tensors, int i)
{
    return i < tensors->n_views ? dense_view(tensors->view[i])
                                : dense_array(tensors->array[i - tensors->n_views].data,
                                              tensors->array[i - tensors->n_views].n);
}

void store_tensors(const struct tensors *to, double *const *from, bool add)
{
    for (int i = 0; i < to->n_views; i++)
        store_view(to->view[i], from[i]);
    for (int i = 0; i < to->n_arrays; i++)
        store_array((float *)(uintptr_t)to->array[i].data, to->array[i].n, from[to->n_views + i],
                    add);
}

static double value_of_objective(const struct objective *objective)
{
    const struct dt_view *dy = objective->dy;
    int64_t n = dy->rows * dy->cols;
    double *y = zeros(n + objective->n_last), total = 0.0;
    objective->forward(objective->problem, y);
    for (int64_t i = 0; i < n; i++)
        total += get_at(dy, i / dy->cols, i % dy->cols) * y[i];
    for (int64_t i = 0; i < objective->n_last; i++)
        total += objective->dlast[i] * y[n + i];
    return total;
}

void check_direction(const struct parity *p, const char *name, double *x, const double *gradient,
                     int64_t n, const struct objective *objective, double tolerance)
{
    const double step = 1e-5; // the error of the differences is then below 1e-8
    struct dt_philox rng = dt_philox_init(77, 1, 0);
    double *start = zeros(n), *along = zeros(n), analytic = 0.0, size = 0.0, numeric = 0.0;
    memcpy(start, x, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        along[i] = (double)dt_philox_normal(&rng);
        analytic += along[i] * gradient[i], size += gradient[i] * gradient[i];
    }
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int64_t i = 0; i < n; i++)
            x[i] = start[i] + sign * step * along[i];
        numeric += sign * value_of_objective(objective) / (2.0 * step);
    }
    memcpy(x, start, (size_t)n * sizeof *x);
    CHECK(fabs(analytic - numeric) <= tolerance * sqrt(size) + 1e-8,
          "%s: along %s the op's gradient gives %.9g, differences %.9g", p->text, name, analytic,
          numeric);
}

uint8_t *make_reset(int64_t batch, int64_t length, enum resets resets, int64_t chunk)
{
    uint8_t *reset = resets == NO_RESETS ? NULL : guarded(batch * length);
    for (int64_t row = 0; reset && row < batch * length; row++) {
        int64_t b = row / length, t = row % length;
        const bool chosen[RESETS] = {[AT_ZERO] = t == 0,
                                     [IN_A_ROW] = (t >= 3 && t <= 5) || (t >= 30 && t <= 33),
                                     [AT_CHUNKS] = t % chunk == 0,
                                     [MANY] = (t * 7 + b * 3) % 11 < 2 || row == 0,
                                     [AT_END] = t == length - 1 - b % 2};
        reset[row] = chosen[resets];
    }
    return reset;
}

uint8_t *make_mask(int64_t batch, int64_t length)
{
    uint8_t *mask = guarded(batch * length);
    for (int64_t i = 0; i < batch * length; i++)
        mask[i] = i % length < length - i / length * 13 % (length + 1) && i % 5 != 4;
    return mask;
}

int64_t count_nans(const void *x, dt_dtype type, int64_t first, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = first; i < first + n; i++)
        count += isnan(get(x, type, i)) != 0;
    return count;
}

// ---- the backends

static const struct dt_op_table reference_table = {.name = "reference",
                                                   .int8 = true,
#define REFERENCE_SLOT(op) .op = reference_##op,
                                                   DT_OPS(REFERENCE_SLOT)
#undef REFERENCE_SLOT
};

// A device runs a case twice. The simulated device runs it in each order of its threads, or only in
// `order`.
static void open_device(struct parity *p, const char *order)
{
    p->runs = 2;
    p->slack = 4.0;
#ifdef PARITY_SIMT
    p->slack = 1.0;
    p->runs = 0;
    for (int i = 0; i < SIMT_ORDERS; i++)
        if (strcmp(order, "all") == 0 || strcmp(order, simt_order_name((enum simt_order)i)) == 0)
            p->order[p->runs++] = (enum simt_order)i;
    if (strcmp(p->name, "simt") == 0)
        p->tested[0] = open_simt();
#endif
    if (strcmp(p->name, "cuda") == 0) {
        check_ok(dt_backend_open("cuda", 0, 0, &p->tested[0]), "opening the device");
        CHECK_OK(dt_stream_create(&p->tested[0], &p->stream));
    }
    if (!p->tested[0].device || p->runs == 0) {
        fprintf(stderr, "no backend %s, or no order %s\n", p->name, order);
        exit(1);
    }
    for (int i = 1; i < p->runs; i++)
        p->tested[i] = p->tested[0];
    p->right = open_cpu(p->model ? 0 : 1); // small shapes need a single thread
}

static void open_backends(struct parity *p, const char *order)
{
    static const int threads[PARITY_RUNS] = {1, 2, 3, 5};
    if (!p->is_cpu) {
        open_device(p, order);
        return;
    }
    for (p->runs = 0; p->runs < PARITY_RUNS; p->runs++)
        p->tested[p->runs] = open_cpu(threads[p->runs]);
    p->right = open_cpu(1);
    p->right.op = &reference_table;
}

static void close_backends(struct parity *p)
{
    dt_free(&p->tested[0], p->workspace);
    CHECK_INT(dt_memory_in_use(&p->tested[0]), 0);
    if (p->stream)
        dt_stream_destroy(&p->tested[0], p->stream);
    for (int i = 0; i < (p->is_cpu ? p->runs : 1); i++)
        dt_backend_close(&p->tested[i]);
    dt_backend_close(&p->right);
}

// Returns why the backend cannot be tested, or NULL.
static const char *missing_device(const char *name)
{
    const struct dt_known_backend *known = dt_backend_find(name);
    int n = 0;
    if (strcmp(name, "cpu") == 0)
        return NULL;
    if (strcmp(name, "simt") == 0)
#ifdef PARITY_SIMT
        return NULL;
#else
        return "this build does not simulate a device";
#endif
    if (!known)
        return "this build has no CUDA";
    return known->table->count(&n) == DT_OK && n > 0 ? NULL : dt_error_current()->message;
}

// ---- the program

static const struct family {
    const char *name;
    void (*run)(struct parity *p);
} families[] = {
    {"flat", parity_flat}, {"embed", parity_embed},         {"rmsnorm", parity_rmsnorm},
    {"xent", parity_xent}, {"gemm", parity_gemm},           {"conv", parity_conv},
    {"scan", parity_scan}, {"attention", parity_attention}, {"rnn", parity_rnn},
    {"ssd", parity_ssd},   {"gated", parity_gated},         {"policy", parity_policy},
    {"pool", parity_pool}, {"reverse", parity_reverse},
};
enum { FAMILIES = sizeof families / sizeof *families };

static int usage(void)
{
    fprintf(
        stderr,
        "usage: test_parity [--model] [--order ORDER] [--isa ISA] [--list] [--case N] [--from N]\n"
        "                   [--every N] BACKEND [FAMILY...]\n"
        "       test_parity --families\n"
        "  BACKEND  cpu: against loops in double precision; cuda: a device, against the CPU;\n"
        "           simt: the CUDA kernels on the host, against the CPU\n"
        "  FAMILY   such as scan or policy; all when none is named\n"
        "  --model  the shapes of the 130M model in place of small, awkward ones\n"
        "  --order  of the simulated device's threads: all, ascending, descending, random, warp\n"
        "  --isa    DTRAIN_MAX_ISA for the CPU: avx512_bf16, avx512, avx2, plain\n"
        "  --list   the cases with their numbers; --case runs one of them, --from\n"
        "           it and those after it, --every each Nth\n"
        "Exit code 3: \"the device is lost in case N\", and later cases did not run.\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct parity p = {.every = 1, .slack = 1.0};
    const char *order = "all";
    bool chosen[FAMILIES] = {false}, all = true;
    for (int i = 1; i < argc; i++) {
        int family = 0;
        while (family < FAMILIES && strcmp(argv[i], families[family].name) != 0)
            family++;
        if (p.name && family < FAMILIES)
            chosen[family] = true, all = false;
        else if (strcmp(argv[i], "--model") == 0)
            p.model = true;
        else if (strcmp(argv[i], "--list") == 0)
            p.list = true;
        else if (strcmp(argv[i], "--families") == 0) {
            for (int k = 0; k < FAMILIES; k++)
                puts(families[k].name);
            return 0;
        } else if (strcmp(argv[i], "--order") == 0 && i + 1 < argc)
            order = argv[++i];
        else if (strcmp(argv[i], "--case") == 0 && i + 1 < argc)
            p.only_case = atoi(argv[++i]);
        else if (strcmp(argv[i], "--from") == 0 && i + 1 < argc)
            p.first_case = atoi(argv[++i]);
        else if (strcmp(argv[i], "--every") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0)
            p.every = atoi(argv[++i]);
        else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
            setenv("DTRAIN_MAX_ISA", argv[++i], 1);
        else if (!p.name && argv[i][0] != '-')
            p.name = argv[i];
        else
            return usage();
    }
    if (!p.name)
        return usage();
    p.is_cpu = strcmp(p.name, "cpu") == 0;
    const char *reason = missing_device(p.name);
    if (reason) {
        fprintf(stderr, "skipped: %s\n", reason);
        return TEST_SKIP;
    }
    open_backends(&p, order);
    for (int i = 0; i < FAMILIES; i++)
        if (all || chosen[i])
            families[i].run(&p);
    release_case();
    check_device(&p);
    for (int op = 0; op < N_OPS && all && runs_all(&p); op++)
        CHECK(p.done[op] || (op == OP_gemm && strcmp(p.name, "simt") == 0), "nothing compares %s",
              op_forms[op].name);
    close_backends(&p);
    return p.list ? 0 : test_end();
}
