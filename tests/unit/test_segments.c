// A window that is run in segments gives the gradients of the whole window: forward keeps the
// states at the borders, and backward runs from the last segment to the first with the gradients of
// these states. Tests models of every kind of block, documents that start anywhere, and windows
// that are not a whole number of segments.
#include "random_pass.h"
#include "train/segments.h"

#include <xxhash.h>

enum { B = 3, L = 171, ROWS = B * L };

// Runs a window in segments. `streams` [B, L, d] receives the residual streams of all positions and
// *sum the losses.
static void run_segments(struct random_pass *p, int64_t segment, float *streams,
                         struct dt_loss_sum *sum)
{
    const struct dt_input_config batch = {
        .sequences = B, .length = L, .micro = B, .segment = segment};
    int64_t d = dt_model_config(p->model)->d_model;
    struct dt_segments segments;
    struct dt_pass part;
    CHECK_OK(dt_segments_create(&p->backend, p->model, &batch, &segments));
    const int64_t n = segments.n;
    for (int64_t turn = 0; turn < 2 * n; turn++) {
        if (turn < n)
            CHECK_OK(dt_segments_forward(&segments, &p->pass, turn, &part));
        else if (turn == n)
            CHECK_OK(dt_segments_loss(&segments, &part, 0x1p-9, sum));
        else
            CHECK_OK(dt_segments_again(&segments, &p->pass, 2 * n - 1 - turn, 0x1p-9, sum, &part));
        const float *stream = dt_model_residual(p->model, &part).data;
        for (int64_t b = 0; b < B; b++)
            memcpy(streams + (b * L + part.at) * d, stream + b * part.input.length * d,
                   (size_t)(part.input.length * d) * sizeof *stream);
        if (turn >= n)
            CHECK_OK(dt_segments_backward(&segments, &p->pass, 2 * n - 1 - turn, &part));
    }
    dt_segments_destroy(&segments);
}

// Removes the targets of the last 45 positions of each window, which end in the last segment.
static void move_targets(struct random_pass *p)
{
    int index = dt_array_list_find(dt_model_arrays(p->model), "targets");
    int64_t width = index < 0 ? 0 : dt_model_arrays(p->model)->arrays[index].width;
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t i = 0; i < width && row % L >= L - 45; i++)
            ((float *)p->arrays[index])[row * width + i] = NAN;
}

// Sums are in fp32 and have another order: in matrix products, where the order depends on the
// number of rows, over what a position sees in attention, and in gradients over positions.
static void test_model(const char *layers, const char *heads, enum dt_recompute recompute,
                       int64_t segment, int64_t window, enum dt_direction direction)
{
    const bool both = direction == DT_DIRECTION_BOTH;
    const char *stem = strcmp(heads, "lm") == 0 ? "tokens" : "frames";
    struct dt_model_config config = random_pass_config(stem, layers, heads);
    struct random_pass p, q; // of whole windows, and of segments
    struct dt_loss_sum got = {0};
    int64_t d = config.d_model;
    config.recompute = recompute;
    config.direction = direction;
    WHOLE_OF(config, attn_window) = window;
    random_pass_open(&p, 2);
    random_pass_create(&p, &config, B, L);
    random_pass_open(&q, 2);
    q.segment = both ? segment : 0;
    random_pass_create(&q, &config, B, L);
    move_targets(&p);
    move_targets(&q);
    struct dt_loss_sum want = random_pass_run(&p, false);
    size_t stream_bytes = ROWS * (size_t)d * 4;
    float *whole = malloc(stream_bytes), *parts = malloc(stream_bytes);
    memcpy(whole, dt_model_residual(p.model, &p.pass).data, stream_bytes);
    run_segments(&q, segment, parts, &got);
    double off = random_pass_distance(parts, whole, ROWS * d);
    // With segments of whole chunks the bits are those of the whole window. Read from the end of
    // this window, chunks begin elsewhere.
    bool exact = segment % 64 == 0 && !both;
    CHECK(exact ? off == 0 : off < 1e-6, "%s, %s, %s, segments of %d: the stream differs by %.2g",
          layers, heads, both ? "both ways" : "forward", (int)segment, off);
    CHECK(got.counted == want.counted && fabs(got.loss / want.loss - 1) < 1e-6,
          "%s, %s, %s, segments of %d: loss %.9g of %g, not %.9g of %g", layers, heads,
          both ? "both ways" : "forward", (int)segment, got.loss, got.counted, want.loss,
          want.counted);
    for (int i = 0; i < dt_model_params(p.model)->n; i++) {
        const struct dt_param *row = &dt_model_params(p.model)->rows[i];
        off = random_pass_distance(dt_model_gradients(q.model) + row->offset,
                                   dt_model_gradients(p.model) + row->offset, row->count);
        CHECK(off < 1e-5, "%s, %s, %s, segments of %d: the gradient of %s differs by %.2g", layers,
              heads, both ? "both ways" : "forward", (int)segment, row->name, off);
    }
    free(whole);
    free(parts);
    random_pass_close(&p);
    random_pass_close(&q);
}

// Two ranks take turns at the six segments of a window. A state that is being sent stays unchanged
// while the rank runs its next segment, and received states stay until backward.
static void test_group(void)
{
    const struct dt_model_config config = random_pass_config("tokens", "mamba*2", "lm");
    struct random_pass p;
    random_pass_open(&p, 1);
    random_pass_create(&p, &config, B, L);
    for (int rank = 0; rank < 2; rank++) {
        struct dt_comm comm = {.info = {.rank = rank, .size = 2}};
        const struct dt_input_config batch = {
            .sequences = B, .length = L, .micro = B, .segment = 29, .context = 2, .comm = &comm};
        struct dt_segments segments;
        struct dt_pass part[3];
        CHECK_OK(dt_segments_create(&p.backend, p.model, &batch, &segments));
        CHECK_INT(segments.n, 3);
        for (int k = 0; k < 3; k++) {
            const struct dt_pass *a = &part[k];
            CHECK_OK(dt_segments_pass(&segments, &p.pass, k, &part[k]));
            CHECK_INT(a->at, (2 * k + rank) * 29);
            CHECK(dt_segments_own(&segments, a->at) &&
                      dt_segments_own(&segments, a->at + a->input.length - 1) &&
                      !dt_segments_own(&segments, (2 * k + 1 - rank) * 29),
                  "rank %d, segment %d", rank, k);
            CHECK(!a->before == (rank == 0 && k == 0) && !a->after == (rank == 1 && k == 2) &&
                      a->relay && a->gradient_relay,
                  "rank %d, segment %d: what moves", rank, k);
            CHECK(!a->before || a->dbefore != a->dafter, "rank %d, segment %d: gradients", rank, k);
            for (int other = 0; other < k; other++)
                CHECK(a->before != part[other].before && a->before != part[other].after &&
                          a->after != part[other].before,
                      "rank %d: segments %d and %d share a state", rank, k, other);
            CHECK(k == 0 || a->after != part[k - 1].after,
                  "rank %d, segment %d overwrites what is being sent", rank, k);
        }
        dt_segments_destroy(&segments);
    }
    random_pass_close(&p);
}

// A communicator that transfers nothing and records the signatures of what a rank sends and
// receives, and the bytes that it sends.
struct dt_request {
    const void *data;
    int64_t bytes;
    uint64_t hash;
};
struct recorder {
    struct dt_comm comm;
    uint32_t signatures[2][128]; // of what was sent; of what was received
    int n[2];
    struct dt_request sent[128];
};

static dt_status record(struct dt_comm *comm, const struct dt_collective *call,
                        struct dt_request **request)
{
    struct recorder *r = (struct recorder *)comm;
    int way = call->data != NULL, i = r->n[way]++ % 128;
    r->signatures[way][i] = call->signature;
    *request = call->mine ? &r->sent[i] : NULL;
    if (call->mine)
        r->sent[i] = (struct dt_request){call->mine, call->count,
                                         XXH3_64bits(call->mine, (size_t)call->count)};
    return DT_OK;
}

static dt_status recorded(struct dt_comm *comm, struct dt_request *request)
{
    (void)comm;
    CHECK(!request || request->hash == XXH3_64bits(request->data, (size_t)request->bytes),
          "%lld bytes changed while they were being sent", (long long)request->bytes);
    return DT_OK;
}

// Runs two windows of six segments as one of two ranks.
static void run_turns(struct random_pass *p, struct dt_comm *comm)
{
    const struct dt_input_config batch = {
        .sequences = B, .length = L, .micro = B, .segment = 29, .context = 2, .comm = comm};
    struct dt_segments segments;
    struct dt_loss_sum sum = {0};
    struct dt_pass part;
    CHECK_OK(dt_segments_create(&p->backend, p->model, &batch, &segments));
    for (int window = 0; window < 2; window++) {
        for (int k = 0; k < 3; k++)
            CHECK_OK(dt_segments_forward(&segments, &p->pass, k, &part));
        CHECK_OK(dt_segments_loss(&segments, &part, 0x1p-9, &sum));
        CHECK_OK(dt_segments_backward(&segments, &p->pass, 2, &part));
        for (int k = 1; k >= 0; k--) {
            CHECK_OK(dt_segments_again(&segments, &p->pass, k, 0x1p-9, &sum, &part));
            CHECK_OK(dt_segments_backward(&segments, &p->pass, k, &part));
        }
        CHECK_OK(dt_segments_settle(&segments));
    }
    dt_segments_destroy(&segments);
}

// Everything that a rank sends has the signature that the other rank expects, and stays until it
// has been sent. No two signatures are equal: those of other arrays, blocks, directions, borders
// and windows and those of gradients differ.
static void test_exchanges(enum dt_direction direction)
{
    const bool both = direction == DT_DIRECTION_BOTH;
    static const struct dt_comm_table table = {"records", record, recorded, NULL, NULL, NULL, NULL};
    struct dt_model_config config = random_pass_config("frames", "mamba lstm", "a:regression*2");
    struct recorder ranks[2] = {0};
    struct random_pass p;
    config.direction = direction;
    random_pass_open(&p, 1);
    p.segment = both ? 29 : 0;
    random_pass_create(&p, &config, B, L);
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank].comm = (struct dt_comm){.table = &table, .info = {.rank = rank, .size = 2}};
        run_turns(&p, &ranks[rank].comm);
    }
    // Windows, borders, blocks, arrays, states and their gradients, directions.
    enum { FORWARD = 2 * 5 * 2 * 2 * 2, MOST = 2 * FORWARD };
    uint32_t all[MOST];
    int n = 0, same = 0;
    for (int rank = 0; rank < 2; rank++) {
        const struct recorder *mine = &ranks[rank], *other = &ranks[1 - rank];
        CHECK_INT(other->n[1], mine->n[0]);
        for (int i = 0; i < mine->n[0] && n < MOST; i++) {
            CHECK_INT(other->signatures[1][i], mine->signatures[0][i]);
            all[n++] = mine->signatures[0][i];
        }
    }
    CHECK_INT(n, both ? MOST : FORWARD);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            same += all[i] == all[j];
    CHECK_INT(same, 0);
    random_pass_close(&p);
}

int main(void)
{
    static const char *const layers[] = {"mamba*2", "mamba2*2", "gru*2", "lstm*2", "attention*2"};
    static const char *const pools[] = {
        "a:regression*2/mean", "a:categorical*5/last", "a:huber*2/max",
        "a:categorical*5@0.3/last b:bernoulli*3 c:huber*2/max d:regression/mean e:huber*2/mean"};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        // Segments of no whole chunks, then of whole ones.
        for (int64_t segment = 50; segment <= 64; segment += 14)
            test_model(layers[i], "lm", DT_RECOMPUTE_NONE, segment, 8, DT_DIRECTION_FORWARD);
    // Windows of attention that are longer than a segment: of two segments, and of all.
    test_model("attention*2", "lm", DT_RECOMPUTE_NONE, 64, 100, DT_DIRECTION_FORWARD);
    test_model("attention*2", "lm", DT_RECOMPUTE_NONE, 64, L, DT_DIRECTION_FORWARD);
    for (enum dt_recompute recompute = DT_RECOMPUTE_NONE; recompute <= DT_RECOMPUTE_BLOCK;
         recompute++)
        test_model("mamba attention mlp gru mamba2 lstm", "lm", recompute, 64, 8,
                   DT_DIRECTION_FORWARD);
    // Pools over the whole window, whose last segment has 43 positions, or 5 positions whose
    // targets do not count.
    for (int64_t segment = 64; segment <= 166; segment += 102)
        for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
            test_model("mamba*2", pools[i], DT_RECOMPUTE_NONE, segment, 8, DT_DIRECTION_FORWARD);
    for (size_t i = 0; i < 4; i++)
        for (int64_t segment = 50; segment <= 64; segment += 14)
            test_model(layers[i], "a:regression*2", DT_RECOMPUTE_NONE, segment, 8,
                       DT_DIRECTION_BOTH);
    test_model("mamba mlp gru mamba2 lstm", pools[3], DT_RECOMPUTE_NONE, 64, 8, DT_DIRECTION_BOTH);
    test_group();
    test_exchanges(DT_DIRECTION_FORWARD);
    test_exchanges(DT_DIRECTION_BOTH);
    return test_end();
}
