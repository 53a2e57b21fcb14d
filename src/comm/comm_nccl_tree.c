// Sums in the order DT_SUM_TREE between devices: exchanges with the ranks that differ in one bit of
// their number, from bit 0 on, each followed by an addition on the stream. As between hosts
// (comm_mpi_tree.c) vectors are halved on the way; here all halves are contiguous, so that a step
// is one message each way. Blocks then arrive by the reversed bits of their numbers, and one more
// exchange brings each to its rank.
#include "comm/comm_nccl.h"

#include "base/span.h"

struct tree {
    struct nccl_comm *nccl;
    const struct dt_collective *c;
    struct dt_stream *stream;
    int rank, levels;
};

static char *address(const struct tree *t, int64_t element)
{
    return (char *)t->c->data + element * dt_dtype_size(t->c->dtype);
}

static dt_status exchange(const struct tree *t, int peer, struct dt_span out, void *in,
                          struct dt_span received)
{
    const struct nccl_messages messages = {.peer = peer,
                                           .dtype = t->c->dtype,
                                           .out = address(t, out.first),
                                           .n_out = out.end - out.first,
                                           .in = in,
                                           .n_in = received.end - received.first};
    return dt_nccl_exchange(t->nccl, &messages, t->stream);
}

// `mine` += that of the rank across `level`, which gets what is `theirs`. The time of the addition
// is that of the collective: the op is not dispatched (ops.c), which would time it.
static dt_status add(const struct tree *t, int level, struct dt_span mine, struct dt_span theirs)
{
    const struct dt_backend *backend = t->nccl->backend;
    struct dt_accumulate_args args = {.n = mine.end - mine.first,
                                      .x = t->nccl->scratch,
                                      .x_type = t->c->dtype,
                                      .y = address(t, mine.first)};
    DT_TRY(exchange(t, t->rank ^ 1 << level, theirs, t->nccl->scratch, mine));
    return args.n > 0 ? backend->op->accumulate(backend->device, &args, t->stream) : DT_OK;
}

// The half of a span that `rank` keeps at a level.
static struct dt_span half_of(struct dt_span span, int rank, int level)
{
    int64_t middle = span.first + dt_ceil_div(span.end - span.first, 2);
    return rank >> level & 1 ? (struct dt_span){middle, span.end}
                             : (struct dt_span){span.first, middle};
}

// What this rank keeps of `span` after the first levels.
static struct dt_span kept(const struct tree *t, struct dt_span span, int levels)
{
    for (int l = 0; l < levels; l++)
        span = half_of(span, t->rank, l);
    return span;
}

static dt_status add_halves(const struct tree *t, struct dt_span all)
{
    for (int l = 0; l < t->levels; l++) {
        struct dt_span span = kept(t, all, l);
        DT_TRY(add(t, l, half_of(span, t->rank, l), half_of(span, t->rank ^ 1 << l, l)));
    }
    return DT_OK;
}

static dt_status gather_halves(const struct tree *t, struct dt_span all)
{
    for (int l = t->levels - 1; l >= 0; l--) {
        int peer = t->rank ^ 1 << l;
        struct dt_span span = kept(t, all, l), theirs = half_of(span, peer, l);
        DT_TRY(exchange(t, peer, half_of(span, t->rank, l), address(t, theirs.first), theirs));
    }
    return DT_OK;
}

static dt_status add_wholes(const struct tree *t, struct dt_span all)
{
    for (int l = 0; l < t->levels; l++)
        DT_TRY(add(t, l, all, all));
    return DT_OK;
}

// The block that halving leaves here is another rank's; that rank has this one's.
static dt_status swap_blocks(const struct tree *t)
{
    int64_t count = t->c->count;
    int other = 0;
    for (int l = 0; l < t->levels; l++)
        other |= (t->rank >> l & 1) << (t->levels - 1 - l);
    if (other == t->rank)
        return DT_OK;
    struct dt_span theirs = {other * count, (other + 1) * count};
    return exchange(t, other, theirs, address(t, t->rank * count), theirs);
}

dt_status dt_nccl_sum_by_tree(struct nccl_comm *nccl, const struct dt_collective *c,
                              struct dt_stream *stream)
{
    const struct dt_comm_info *info = &nccl->comm->info;
    struct tree t = {.nccl = nccl, .c = c, .stream = stream, .rank = info->rank};
    while (1 << t.levels < info->size)
        t.levels++;
    if (c->operation == DT_REDUCE_SCATTER) {
        DT_TRY(add_halves(&t, (struct dt_span){0, info->size * c->count}));
        return swap_blocks(&t);
    }
    struct dt_span all = {0, c->count};
    if (c->count * dt_dtype_size(c->dtype) <= DT_DEVICE_TREE_WHOLE)
        return add_wholes(&t, all);
    DT_TRY(add_halves(&t, all));
    return gather_halves(&t, all);
}
