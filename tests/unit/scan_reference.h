// The selective scan in double precision, straight from the formulas of kernels/scan.h: one channel
// after another, every state kept. Arrays are dense.
#pragma once

#include "op_fixture.h"

#include <stdbool.h>

enum resets { NO_RESETS, AT_ZERO, IN_A_ROW, AT_CHUNKS, MANY };

struct problem {
    int64_t batch, length, channels, state, chunk;
    dt_dtype type;
    bool h0, wide, accumulate; // wide: strides larger than rows
    enum resets resets;
};

// Inputs and gradients in double, as the reference takes and gives them. [B, L, D] and [B, L, N]
// are dense here.
struct values {
    double *u, *delta, *z, *b, *c, *a_log, *d_skip, *dt_bias, *h0;
};
enum { N_INPUTS = 8 }; // those with gradients
static const char *const input_name[] = {"u", "delta", "z", "b", "c", "a_log", "d_skip", "dt_bias"};

static inline double **input(struct values *v, int i)
{
    double **all[] = {&v->u,     &v->delta,  &v->z,       &v->b, &v->c,
                      &v->a_log, &v->d_skip, &v->dt_bias, &v->h0};
    return all[i];
}

static inline int64_t input_size(const struct problem *p, int i)
{
    int64_t rows = p->batch * p->length;
    if (i < 3)
        return rows * p->channels;
    if (i < 5)
        return rows * p->state;
    if (i == 5)
        return p->channels * p->state;
    return i < 8 ? p->channels : p->batch * p->channels * p->state;
}

static inline double *zeros(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    if (!x)
        exit(1);
    return x;
}

static inline struct values make_values(const struct problem *p)
{
    struct values v;
    for (int i = 0; i <= N_INPUTS; i++)
        *input(&v, i) = zeros(input_size(p, i));
    return v;
}

static inline void free_values(struct values *v)
{
    for (int i = 0; i <= N_INPUTS; i++)
        free(*input(v, i));
}

static inline bool is_reset(const uint8_t *reset, int64_t row)
{
    return reset && reset[row];
}

static inline double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static inline double softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

// One channel forward: h[(t + 1) N + n] is the state after t, h[n] that before 0; s[t].
static inline void channel_forward(const struct problem *p, const struct values *v,
                                   const uint8_t *reset, int64_t b, int64_t d, double *h, double *s)
{
    int64_t N = p->state, D = p->channels;
    for (int64_t n = 0; n < N; n++)
        h[n] = p->h0 ? v->h0[(b * D + d) * N + n] : 0.0;
    for (int64_t t = 0; t < p->length; t++) {
        int64_t row = b * p->length + t;
        double u = v->u[row * D + d], delta = softplus(v->delta[row * D + d] + v->dt_bias[d]);
        s[t] = v->d_skip[d] * u;
        for (int64_t n = 0; n < N; n++) {
            double before = is_reset(reset, row) ? 0.0 : h[t * N + n];
            double decay = exp(-delta * exp(v->a_log[d * N + n]));
            h[(t + 1) * N + n] = decay * before + delta * u * v->b[row * N + n];
            s[t] += v->c[row * N + n] * h[(t + 1) * N + n];
        }
    }
}

// Outputs of the reference: y, h_last, states (or NULL).
struct outputs {
    double *y, *h_last, *states;
};

static inline void reference_forward(const struct problem *p, const struct values *v,
                                     const uint8_t *reset, struct outputs *out)
{
    int64_t L = p->length, D = p->channels, N = p->state, chunks = (L - 1) / p->chunk + 1;
    double *h = zeros((L + 1) * N), *s = zeros(L);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t d = 0; d < D; d++) {
            channel_forward(p, v, reset, b, d, h, s);
            for (int64_t t = 0; t < L; t++) {
                int64_t i = (b * L + t) * D + d;
                out->y[i] = s[t] * v->z[i] * sigmoid(v->z[i]);
            }
            for (int64_t n = 0; n < N && out->states; n++) {
                out->h_last[(b * D + d) * N + n] = h[L * N + n];
                for (int64_t k = 0; k < chunks; k++)
                    out->states[((b * chunks + k) * N + n) * D + d] = h[k * p->chunk * N + n];
            }
        }
    free(h);
    free(s);
}

// Gradients of Σ dy y, straight from the formulas.
static inline void reference_backward(const struct problem *p, const struct values *v,
                                      const uint8_t *reset, const double *dy, struct values *g)
{
    int64_t L = p->length, D = p->channels, N = p->state;
    double *h = zeros((L + 1) * N), *s = zeros(L), *carry = zeros(N);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t d = 0; d < D; d++) {
            channel_forward(p, v, reset, b, d, h, s);
            memset(carry, 0, (size_t)N * sizeof *carry);
            for (int64_t t = L - 1; t >= 0; t--) {
                int64_t row = b * L + t, i = row * D + d;
                double u = v->u[i], x = v->delta[i] + v->dt_bias[d], delta = softplus(x);
                double z = v->z[i], gate = sigmoid(z), ds = dy[i] * z * gate;
                double ddelta = 0.0, du = ds * v->d_skip[d];
                for (int64_t n = 0; n < N; n++) {
                    double a = -exp(v->a_log[d * N + n]), decay = exp(delta * a);
                    double before = is_reset(reset, row) ? 0.0 : h[t * N + n];
                    double dh = ds * v->c[row * N + n] + carry[n];
                    g->c[row * N + n] += ds * h[(t + 1) * N + n];
                    g->b[row * N + n] += dh * delta * u;
                    du += delta * dh * v->b[row * N + n];
                    ddelta += dh * (a * decay * before + u * v->b[row * N + n]);
                    g->a_log[d * N + n] += dh * before * decay * delta * a;
                    carry[n] = is_reset(reset, row) ? 0.0 : decay * dh;
                }
                g->u[i] = du;
                g->z[i] = dy[i] * s[t] * gate * (1.0 + z * (1.0 - gate));
                g->delta[i] = ddelta * sigmoid(x);
                g->d_skip[d] += ds * u;
                g->dt_bias[d] += ddelta * sigmoid(x);
            }
        }
    free(h);
    free(s);
    free(carry);
}
