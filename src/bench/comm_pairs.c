// `dtrain bench --comm --pairs` lets every two ranks exchange, with as many pairs at a time as
// possible, and names the ranks whose pairs are slow.
#include "bench/comm.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5, SHOWN = 16 }; // ranks up to which the whole matrix is printed
static const double slow = 0.7;   // as a share of the median

// The partner of a rank in round k of a round-robin tournament of n; -1: none.
static int opponent(int rank, int k, int n)
{
    int last = n + n % 2 - 1; // the others rotate around it
    int other = rank == last ? k : rank == k ? last : ((2 * k - rank) % last + last) % last;
    return other < n ? other : -1;
}

// Measures seconds[other] of this rank with every other rank.
static dt_status play(const struct dt_bench_route *route, int64_t bytes, double *seconds)
{
    const struct dt_comm_info *info = &route->comm->info;
    int rounds = info->size + info->size % 2 - 1;
    for (int k = 0; k < rounds; k++) {
        struct dt_collective c = {.operation = DT_EXCHANGE,
                                  .dtype = DT_F32,
                                  .peer = opponent(info->rank, k, info->size),
                                  .count = bytes / (int64_t)sizeof(float),
                                  .data = route->data,
                                  .mine = route->mine};
        double best = INFINITY;
        for (int i = 0; i <= REPEATS; i++) {
            DT_TRY(dt_barrier(route->comm));
            double start = dt_seconds();
            DT_TRY(dt_bench_run_collective(route, &c, 1));
            best = i > 0 ? fmin(best, dt_seconds() - start) : best; // the first call connects
        }
        if (c.peer >= 0)
            seconds[c.peer] = best;
    }
    return DT_OK;
}

struct pairs {
    const struct dt_bench_route *route;
    int n;
    int64_t bytes;
    double *rates;               // [n, n] bytes/s, the slower of both directions
    double *list;                // [n, n]
    char (*hosts)[DT_HOST_NAME]; // [n]
    double typical[2];           // median of the pairs on one host, and between two
};

static bool is_between(const struct pairs *p, int a, int b)
{
    return strcmp(p->hosts[a], p->hosts[b]) != 0;
}

// Prints the median of the pairs of one kind with the slowest.
static void judge_kind(struct pairs *p, bool between)
{
    int64_t n = 0;
    int a = 0, b = 0;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < i; k++)
            if (is_between(p, i, k) == between) {
                double rate = p->rates[i * p->n + k];
                if (n == 0 || rate < p->rates[a * p->n + b])
                    a = i, b = k;
                p->list[n++] = rate;
            }
    p->typical[between] = dt_bench_median_of(p->list, n);
    if (n > 0 && !p->route->json)
        printf("# %s %lld pairs %s: median %.3f GB/s\n"
               "#   slowest %.3f GB/s: ranks %d on %s and %d on %s\n",
               p->route->name, (long long)n, between ? "between hosts" : "within hosts",
               p->typical[between] / 1e9, p->rates[a * p->n + b] / 1e9, b, p->hosts[b], a,
               p->hosts[a]);
}

// A rank is slow if half of its pairs are slow compared with others of their kind.
static void name_slow_ranks(const struct pairs *p)
{
    for (int i = 0; i < p->n && p->n > 3; i++) { // of three ranks, two pairs include the slow one
        int64_t n = 0;
        for (int k = 0; k < p->n; k++)
            if (k != i)
                p->list[n++] = p->rates[i * p->n + k] / p->typical[is_between(p, i, k)];
        double share = dt_bench_median_of(p->list, n);
        if (share < slow)
            dt_warn("%s: rank %d on %s exchanges at %.2f of the median: look at its host, and at "
                    "how its cores are bound",
                    p->route->name, i, p->hosts[i], share);
    }
}

static void print_matrix(const struct pairs *p)
{
    bool json = p->route->json;
    for (int i = 0; i < p->n && (json || p->n <= SHOWN); i++) {
        if (!json)
            printf("  rank %2d, %-20.20s", i, p->hosts[i]);
        for (int k = 0; k < i; k++)
            if (json)
                printf("{\"bench\":\"pairs\",\"backend\":\"%s\",\"rank\":%d,\"host\":\"%s\","
                       "\"with\":%d,\"with_host\":\"%s\",\"bytes\":%lld,\"gb_per_s\":%.5f}\n",
                       p->route->name, i, p->hosts[i], k, p->hosts[k], (long long)p->bytes,
                       p->rates[i * p->n + k] / 1e9);
            else
                printf(" %7.3f", p->rates[i * p->n + k] / 1e9);
        if (!json)
            putchar('\n');
    }
}

dt_status dt_bench_pairs(const struct dt_bench_route *route, int64_t bytes)
{
    const struct dt_comm_info *info = &route->comm->info;
    int n = info->size;
    size_t cells = (size_t)n * (size_t)n;
    struct pairs p = {.route = route, .n = n, .bytes = bytes};
    dt_status status = DT_NEW(&p.rates, cells, "the pairs of %d ranks", n);
    if (status == DT_OK)
        status = DT_NEW(&p.list, cells, "the pairs of %d ranks", n);
    if (status == DT_OK)
        status = DT_NEW(&p.hosts, n, "the hosts of %d ranks", n);
    DT_TRY_GOTO(status, out, dt_agree(route->comm, status));
    DT_TRY_GOTO(status, out, play(route, bytes, p.rates + (size_t)info->rank * (size_t)n));
    snprintf(p.hosts[info->rank], sizeof *p.hosts, "%s", info->host);
    DT_TRY_GOTO(status, out, dt_all_gather(route->comm, p.rates, n * (int64_t)sizeof *p.rates));
    DT_TRY_GOTO(status, out, dt_all_gather(route->comm, p.hosts, sizeof *p.hosts));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            double rate = (double)bytes / fmax(p.rates[i * n + k], p.rates[k * n + i]);
            p.rates[i * n + k] = p.rates[k * n + i] = rate;
        }
    if (info->rank != 0)
        goto out;
    if (!route->json)
        printf("# %s: GB/s each way while every two ranks exchange %lld bytes, best of %d;\n"
               "# as many pairs at a time as there are\n",
               route->name, (long long)bytes, REPEATS);
    print_matrix(&p);
    judge_kind(&p, false);
    judge_kind(&p, true);
    name_slow_ranks(&p);
out:
    free(p.rates);
    free(p.list);
    free(p.hosts);
    return status;
}
