// Runs every op on two backends in one process. A case fills one args struct over guarded host
// arrays from a seed. The tested backend runs it on copies with their guard bands, several times
// (numbers of threads of the CPU, orders of threads of the simulated device), and all runs must
// give the same bits. Then the reference backend runs it, and the results are compared. The
// reference of the CPU is loops in double precision, directly from the formulas of kernels/NAME.h;
// that of CUDA is the CPU. Each file has one family of ops: the double-precision form, the cases
// and their tolerances.
#pragma once

#include "op_fixture.h"
#include "op_forms.h"

#include <stdbool.h>
#include <stddef.h>

enum { PARITY_RUNS = 4 };

struct parity {
    const char *name;        // the tested backend: cpu, simt or cuda
    struct dt_backend right; // the reference
    // One per run: the same, or the CPU with another number of threads.
    struct dt_backend tested[PARITY_RUNS];
    int order[PARITY_RUNS]; // orders of the simulated device's threads, one per run
    int runs;
    struct dt_stream *stream; // of tested[0], NULL for the CPU
    char *workspace;          // in memory of the tested device, between guard bands, for all cases
    int64_t workspace_bytes;
    bool is_cpu;  // the tested backend is the CPU
    double slack; // factor of tolerances: a GPU's fast exp, log and division are less precise
    bool model;   // runs shapes of the 130M model instead of awkward ones
    bool list;    // only lists the cases
    // Does only one of `runs`, another one in each case, where all would take too long.
    bool one_run;
    bool run_only;        // PARITY(…) runs once on the tested backend and compares nothing
    int only_case, cases; // only_case 0: all; cases: how many came so far
    int first_case;       // earlier cases are skipped
    int every;            // runs every n-th case; 1: all
    char text[192];       // description and number of the case
    bool done[N_OPS];
};

// Sizes of the 130M model's step with B sequences, and of a tile of its head.
enum {
    MODEL_LENGTH = 2048,
    MODEL_WIDTH = 768,
    MODEL_INNER = 1536,
    MODEL_STATE = 16,
    MODEL_TAPS = 4,
    MODEL_RANK = 48,
    MODEL_VOCAB = 50280
};

// Begins a case and gives its description. Returns false if the case is not selected. Releases the
// arrays of the case before.
bool parity_case(struct parity *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

// How an output is compared. Outputs that are not listed must have equal values.
struct parity_out {
    const char *field;
    // got - want| <= each · max(floor, |want|) plus one rounding to storage. floor 0 means 1. If
    // nothing is given, values must be equal.
    double each, floor;
    const double *floors;
    // If given, the tolerance of the 2-norm of the difference, relative to that of `stored`. No
    // element may differ by more than 30 times this share of the root mean square.
    double norm;
    int64_t rows; // if given, the number of rows in place of the op's
    bool part;    // compares only a part of a struct: [width] of `type` from byte `from` on
    size_t from;
    dt_dtype type;
    int64_t width;
};

// PARITY(p, op, &args, OUT(y, .each = …)): arrays and shapes are those of the op's rows
// (kernels/ops.h). Afterwards the host arrays hold the results of the tested backend.
#define PARITY(p, op, args, ...)                                                                   \
    do {                                                                                           \
        struct dt_##op##_args *parity_args = (args);                                               \
        const struct parity_out parity_outs[] = {{0}, __VA_ARGS__};                                \
        parity_compare((p), OP_##op, parity_outs + 1,                                              \
                       (int)(sizeof parity_outs / sizeof *parity_outs) - 1, parity_args);          \
    } while (0)
#define OTHERS(...) OUT(, __VA_ARGS__) // all arrays that are not listed
#define OUT(name, ...)                                                                             \
    {                                                                                              \
        .field = #name, __VA_ARGS__                                                                \
    }

// Whether every case runs; otherwise the results of two cases cannot be compared.
static inline bool runs_all(const struct parity *p)
{
    return p->only_case == 0 && p->first_case <= 1 && p->every == 1 && !p->list;
}

void parity_compare(struct parity *p, enum op_index op, const struct parity_out *outs, int n_outs,
                    void *args);

// The double-precision form of each op.
#define REFERENCE(op)                                                                              \
    dt_status reference_##op(struct dt_device *device, const struct dt_##op##_args *a,             \
                             struct dt_stream *stream);
DT_OPS(REFERENCE)
#undef REFERENCE
#define REFERENCE(op)                                                                              \
    dt_status reference_##op(struct dt_device *device __attribute__((unused)),                     \
                             const struct dt_##op##_args *a,                                       \
                             struct dt_stream *stream __attribute__((unused)))

// The families. Each function runs the cases of its ops.
void parity_flat(struct parity *p);
void parity_embed(struct parity *p);
void parity_rmsnorm(struct parity *p);
void parity_xent(struct parity *p);
void parity_policy(struct parity *p);
void parity_pool(struct parity *p);
void parity_reverse(struct parity *p);
void parity_gemm(struct parity *p);
void parity_conv(struct parity *p);
void parity_scan(struct parity *p);
void parity_attention(struct parity *p);
void parity_rnn(struct parity *p);
void parity_ssd(struct parity *p);
void parity_gated(struct parity *p);

// ---- shared by the families

// The tolerance in the norm, plus what rounding a result to storage may add: half the spacing of
// bf16.
static inline double stored(dt_dtype type, double tolerance)
{
    return type == DT_BF16 ? fmax(tolerance, 2e-3) : tolerance;
}

// A stride at which rows begin at multiples of 16 bytes, as those of activations do.
static inline int64_t aligned_stride(dt_dtype type, int64_t width)
{
    int64_t step = 16 / dt_dtype_size(type);
    return (width + step - 1) / step * step;
}

// Arrays in double, which live until the next case begins: zeros, and dense copies of arrays (zeros
// for NULL).
double *zeros(int64_t n);
double *dense(const void *x, dt_dtype type, int64_t rows, int64_t width, int64_t stride);
double *dense_view(const struct dt_view *x);
double *dense_array(const float *x, int64_t n);
// Rounds a dense array into a view or an fp32 array; with `add` adds it there. Does nothing if the
// target is NULL.
void store_view(const struct dt_view *to, const double *from);
void store_array(float *to, int64_t n, const double *from, bool add);

// An array of numbers if the op adds to its gradient, else an unwritten array.
float *gradient_array(int64_t n, bool accumulate, uint32_t seed);

// The inputs of an op, or their gradients: views, then fp32 arrays.
enum { VIEWS_MOST = 5, ARRAYS_MOST = 3 };
struct tensors {
    int n_views, n_arrays;
    const struct dt_view *view[VIEWS_MOST];
    struct {
        const float *data;
        int64_t n;
    } array[ARRAYS_MOST];
};
int64_t tensor_size(const struct tensors *tensors, int i);
double *dense_tensor(const struct tensors *tensors, int i);
void store_tensors(const struct tensors *to, double *const *from, bool add);

// A problem in double with the objective Σ dy · y + Σ dlast · last. `forward` computes y, dense and
// followed by the final state, from the problem.
struct objective {
    const struct dt_view *dy;
    void (*forward)(const void *problem, double *y);
    const void *problem;
    const double *dlast;
    int64_t n_last; // 0: there is only y
};
// Compares the derivative of the objective along a random direction of x[n] with the gradient. It
// may differ by `tolerance` times the gradient's norm, which is the typical size of such a
// derivative.
void check_direction(const struct parity *p, const char *name, double *x, const double *gradient,
                     int64_t n, const struct objective *objective, double tolerance);

static inline double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static inline double softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

// Gradients of states that a case has: of final states, which are inputs, and of initial states,
// which are outputs.
enum { DH_LAST = 1, DH0 = 2 };

// Where documents start.
enum resets { NO_RESETS, AT_ZERO, IN_A_ROW, AT_CHUNKS, MANY, AT_END, RESETS };
uint8_t *make_reset(int64_t batch, int64_t length, enum resets resets, int64_t chunk);
// Masks the last b · 13 % (L + 1) positions of sequence b, and every fifth one.
uint8_t *make_mask(int64_t batch, int64_t length);

int64_t count_nans(const void *x, dt_dtype type, int64_t first, int64_t n);
