// Computes mean and deviation of the columns of frames. Sums within a block are of distances from
// its first frame; blocks are merged as Chan, Golub and LeVeque 1979 merge samples: no digits are
// lost where the mean is far from zero.
#include "data/statistics.h"

#include "base/memory.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { BLOCKS_MAX = 256, BLOCKS_MIN = 8, VALUES = 1 << 20, PIECE_BYTES = 1 << 22 };

static int64_t block_count(const struct dt_dataset *dataset)
{
    int64_t n = VALUES / (dataset->layout.frame_width + 1);
    return dt_min_i64(dt_max_i64(BLOCKS_MIN, dt_min_i64(n, BLOCKS_MAX)), dataset->tokens);
}

// Number of the block's first frame in the dataset; of the block after the last: of all frames.
static int64_t first_of(const struct dt_dataset *dataset, int64_t block)
{
    return (int64_t)((__int128)dataset->tokens * block / block_count(dataset));
}

int64_t dt_statistics_size(const struct dt_dataset *dataset)
{
    return block_count(dataset) * 2 * dataset->layout.frame_width;
}

struct pass {
    const struct dt_dataset *dataset;
    struct dt_shard_cache *shards;
    float *frames; // a piece
    int64_t piece; // frames of it
    double *origin;
    int64_t done, total; // frames of this rank
    void (*report)(void *, double);
    void *context;
};

static dt_status read_block(struct pass *pass, int64_t block, double *restrict sum,
                            double *restrict squares)
{
    const struct dt_dataset *dataset = pass->dataset;
    const float *frames = pass->frames;
    double *restrict origin = pass->origin;
    int64_t F = dataset->layout.frame_width, shard = 0, first = first_of(dataset, block);
    int64_t left = first_of(dataset, block + 1) - first, n = left;
    bool begun = false;
    while (first >= dataset->shards[shard].count)
        first -= dataset->shards[shard++].count;
    for (int64_t some; left > 0; left -= some, first += some) {
        struct dt_reader *reader;
        for (; first == dataset->shards[shard].count; first = 0)
            shard++;
        some = dt_min_i64(dataset->shards[shard].count - first, dt_min_i64(left, pass->piece));
        DT_TRY(dt_shard_cache_get(pass->shards, shard, false, &reader));
        DT_TRY(dataset->kind->frames(reader, first, some, pass->frames));
        for (int64_t i = 0; !begun && i < F; i++)
            origin[i] = frames[i];
        begun = true;
        for (int64_t t = 0; t < some; t++)
            for (int64_t i = 0; i < F; i++) {
                double x = (double)frames[t * F + i] - origin[i];
                sum[i] += x;
                squares[i] += x * x;
            }
        pass->done += some;
        if (pass->report)
            pass->report(pass->context, (double)pass->done / (double)pass->total);
    }
    for (int64_t i = 0; i < F; i++) {
        squares[i] -= sum[i] * sum[i] / (double)n;
        sum[i] = origin[i] + sum[i] / (double)n;
    }
    return DT_OK;
}

dt_status dt_statistics_read(struct dt_shard_cache *shards, int rank, int size, double *blocks,
                             void (*report)(void *, double), void *context)
{
    const struct dt_dataset *dataset = shards->dataset;
    struct pass pass = {.dataset = dataset, .shards = shards, .report = report, .context = context};
    int64_t F = dataset->layout.frame_width, bytes = F * (int64_t)sizeof(float);
    int64_t n = block_count(dataset), from = n * rank / size, end = n * (rank + 1) / size;
    if (F == 0)
        return DT_OK;
    pass.piece = bytes < PIECE_BYTES ? PIECE_BYTES / bytes : 1;
    dt_status status = DT_NEW(&pass.frames, pass.piece * F, "%" PRId64 " frames", pass.piece);
    if (status == DT_OK)
        status = DT_NEW(&pass.origin, F, "the mean of %" PRId64 " columns", F);
    pass.total = first_of(dataset, end) - first_of(dataset, from);
    for (int64_t b = from; b < end && status == DT_OK; b++)
        status = read_block(&pass, b, blocks + 2 * b * F, blocks + (2 * b + 1) * F);
    free(pass.frames);
    free(pass.origin);
    return status;
}

int64_t dt_statistics_finish(const struct dt_dataset *dataset, const double *blocks, float *mean,
                             float *deviation)
{
    int64_t F = dataset->layout.frame_width, n = block_count(dataset), constant = 0;
    for (int64_t i = 0; i < F; i++) {
        double all = blocks[i], squares = blocks[F + i], count = (double)first_of(dataset, 1);
        for (int64_t b = 1; b < n; b++) {
            double more = (double)(first_of(dataset, b + 1) - first_of(dataset, b));
            double apart = blocks[2 * b * F + i] - all;
            all += apart * more / (count + more);
            squares += blocks[(2 * b + 1) * F + i] + apart * apart * count * more / (count + more);
            count += more;
        }
        double root = sqrt(squares > 0 ? squares / count : 0);
        mean[i] = (float)all;
        deviation[i] = (float)root;
        if (root <= fabs(all) * FLT_EPSILON || root < FLT_MIN) {
            deviation[i] = root > 0 ? fmaxf(1, fabsf(mean[i])) : 1;
            constant++;
        }
    }
    return constant;
}
