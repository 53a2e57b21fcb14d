// Computes mean and deviation of columns of numbers. Blocks sum differences from their first number
// and are merged by the formula of Chan, Golub and LeVeque 1979, so no digits are lost if the mean
// is far from zero.
#include "data/statistics.h"

#include "base/log.h"
#include "base/memory.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCKS_MAX = 256, BLOCKS_MIN = 8, VALUES = 1 << 20, PIECE_BYTES = 1 << 22 };

static int64_t width_of(const struct dt_dataset *dataset, enum dt_numbers which)
{
    const struct dt_frame_layout *layout = &dataset->layout;
    const int64_t widths[] = {[DT_NUMBERS_FRAMES] = layout->frame_width,
                              [DT_NUMBERS_TARGETS] = layout->target_width,
                              [DT_NUMBERS_WEIGHTS] = layout->weight_width};
    return widths[which];
}

static int64_t block_count(const struct dt_dataset *dataset, enum dt_numbers which)
{
    int64_t n = VALUES / (width_of(dataset, which) + 1);
    return dt_min_i64(dt_max_i64(BLOCKS_MIN, dt_min_i64(n, BLOCKS_MAX)), dataset->tokens);
}

// Index of the block's first frame in the dataset; for the block after the last, the number of
// frames.
static int64_t first_of(const struct dt_dataset *dataset, enum dt_numbers which, int64_t block)
{
    return (int64_t)((__int128)dataset->tokens * block / block_count(dataset, which));
}

// The parts of a block, [columns] each.
enum { MEAN, SQUARES, COUNT, KNOWN };

int64_t dt_statistics_size(const struct dt_dataset *dataset, enum dt_numbers which)
{
    return block_count(dataset, which) * KNOWN * width_of(dataset, which);
}

struct pass {
    const struct dt_dataset *dataset;
    enum dt_numbers which;
    struct dt_shard_cache *shards;
    float *numbers; // a piece
    int64_t piece;  // frames per piece
    double *origin;
    int64_t done, total; // in frames of this rank
    void (*report)(void *, double);
    void *context;
};

// Finds in a piece the first number of columns that have none yet. Returns how many still have
// none.
static int64_t find_origins(const float *numbers, int64_t n, int64_t F, const double *count,
                            double *origin)
{
    int64_t without = 0;
    for (int64_t i = 0; i < F; i++) {
        int64_t t = 0;
        while (count[i] == 0 && t < n && isnan(numbers[t * F + i]))
            t++;
        if (count[i] == 0 && t < n)
            origin[i] = numbers[t * F + i];
        without += t == n;
    }
    return without;
}

static dt_status read_block(struct pass *pass, int64_t block, double *known)
{
    const struct dt_dataset *dataset = pass->dataset;
    const float *numbers = pass->numbers;
    double *restrict origin = pass->origin;
    int64_t F = width_of(dataset, pass->which), shard = 0,
            first = first_of(dataset, pass->which, block);
    int64_t left = first_of(dataset, pass->which, block + 1) - first, without = F;
    double *restrict sum = known + MEAN * F, *restrict squares = known + SQUARES * F,
                     *restrict count = known + COUNT * F;
    while (first >= dataset->shards[shard].count)
        first -= dataset->shards[shard++].count;
    for (int64_t some; left > 0; left -= some, first += some) {
        struct dt_reader *reader;
        for (; first == dataset->shards[shard].count; first = 0)
            shard++;
        some = dt_min_i64(dataset->shards[shard].count - first, dt_min_i64(left, pass->piece));
        DT_TRY(dt_shard_cache_get(pass->shards, shard, false, &reader));
        DT_TRY(dataset->kind->numbers(reader, pass->which, first, some, pass->numbers));
        if (without > 0)
            without = find_origins(numbers, some, F, count, origin);
        for (int64_t t = 0; t < some; t++)
            for (int64_t i = 0; i < F; i++) {
                float number = numbers[t * F + i];
                double x = (double)number - origin[i];
                bool there = number == number; // not NaN
                x = there ? x : 0;
                sum[i] += x;
                squares[i] += x * x;
                count[i] += there;
            }
        pass->done += some;
        if (pass->report)
            pass->report(pass->context, (double)pass->done / (double)pass->total);
    }
    for (int64_t i = 0; i < F; i++) {
        if (count[i] == 0)
            continue;
        squares[i] -= sum[i] * sum[i] / count[i];
        sum[i] = origin[i] + sum[i] / count[i];
    }
    return DT_OK;
}

dt_status dt_statistics_read(struct dt_shard_cache *shards, enum dt_numbers which, int rank,
                             int size, double *blocks, void (*report)(void *, double),
                             void *context)
{
    const struct dt_dataset *dataset = shards->dataset;
    struct pass pass = {
        .dataset = dataset, .which = which, .shards = shards, .report = report, .context = context};
    int64_t F = width_of(dataset, which), bytes = F * (int64_t)sizeof(float);
    int64_t n = block_count(dataset, which), from = n * rank / size, end = n * (rank + 1) / size;
    if (F == 0)
        return DT_OK;
    pass.piece = bytes < PIECE_BYTES ? PIECE_BYTES / bytes : 1;
    dt_status status = DT_NEW(&pass.numbers, pass.piece * F, "%" PRId64 " frames", pass.piece);
    if (status == DT_OK)
        status = DT_NEW(&pass.origin, F, "the mean of %" PRId64 " columns", F);
    pass.total = first_of(dataset, which, end) - first_of(dataset, which, from);
    for (int64_t b = from; b < end && status == DT_OK; b++)
        status = read_block(&pass, b, blocks + KNOWN * b * F);
    free(pass.numbers);
    free(pass.origin);
    return status;
}

double dt_statistics_count(const struct dt_dataset *dataset, enum dt_numbers which,
                           const double *blocks, int64_t column)
{
    int64_t F = width_of(dataset, which);
    double count = 0;
    for (int64_t b = 0; b < block_count(dataset, which); b++)
        count += blocks[(KNOWN * b + COUNT) * F + column];
    return count;
}

void dt_statistics_merge(const struct dt_dataset *dataset, enum dt_numbers which, double *blocks)
{
    int64_t F = width_of(dataset, which), n = block_count(dataset, which);
    for (int64_t i = 0; i < F; i++) {
        double all = 0, squares = 0, count = 0;
        for (int64_t b = 0; b < n; b++) {
            const double *block = blocks + KNOWN * b * F + i;
            double more = block[COUNT * F], apart = block[MEAN * F] - all;
            if (more == 0)
                continue;
            all = count == 0 ? block[MEAN * F] : all + apart * more / (count + more);
            squares += block[SQUARES * F] +
                       (count == 0 ? 0 : apart * apart * count * more / (count + more));
            count += more;
        }
        blocks[MEAN * F + i] = all;
        blocks[SQUARES * F + i] = squares;
        blocks[COUNT * F + i] = count;
    }
    if (n > 0)
        memset(blocks + KNOWN * F, 0, (size_t)((n - 1) * KNOWN * F) * sizeof *blocks);
}

int64_t dt_statistics_finish(const struct dt_dataset *dataset, enum dt_numbers which,
                             const double *blocks, float *mean, float *deviation)
{
    int64_t F = width_of(dataset, which), constant = 0;
    for (int64_t i = 0; i < F; i++) {
        double all = blocks[MEAN * F + i], squares = blocks[SQUARES * F + i],
               count = blocks[COUNT * F + i];
        double root = sqrt(squares > 0 ? squares / count : 0);
        mean[i] = (float)all;
        deviation[i] = (float)root;
        if (root <= fabs(all) * FLT_EPSILON || root < FLT_MIN) {
            deviation[i] = root > 0 ? fmaxf(1, fabsf(mean[i])) : 1;
            constant += count > 0;
        }
    }
    return constant;
}

// The path depends on everything that dt_statistics_read depends on. Increment FORMAT when its code
// computes or refuses other numbers.
static dt_status kept_path(const char *folder, const struct dt_dataset *dataset,
                           enum dt_numbers which, char path[DT_PATH])
{
    enum { FORMAT = 1 };
    const struct dt_scan_rules *rules = &dataset->rules;
    const char *hdf5 = dt_dataset_hdf5_version(), *kind = dataset->kind->name;
    uint64_t fraction, key;
    memcpy(&fraction, &rules->val_fraction, sizeof fraction);
    const uint64_t numbers[] = {FORMAT,   (uint64_t)which, (uint64_t)rules->time_axis,
                                fraction, rules->held_out, rules->seed};
    key = XXH64(numbers, sizeof numbers, 0);
    key = XXH64(kind, strlen(kind), XXH64(hdf5, strlen(hdf5), key));
    for (int i = 0; i < rules->n_targets; i++) {
        const int64_t target[] = {rules->target[i].width, rules->target[i].classes};
        key = XXH64(target, sizeof target, key);
    }
    for (int64_t i = 0; i < dataset->n_shards; i++) { // the first hash covers columns and episodes
        const struct dt_shard *s = &dataset->shards[i];
        const uint64_t hashes[] = {(uint64_t)s->count, s->first_hash, s->last_hash, s->data_hash,
                                   s->links};
        key = XXH64(hashes, sizeof hashes, XXH64(&s->file, sizeof s->file, key));
    }
    return dt_path(path, "%s/%016" PRIx64, folder, key);
}

void dt_statistics_keep(const char *folder, const struct dt_dataset *dataset, enum dt_numbers which,
                        const double *blocks)
{
    char path[DT_PATH], *bytes;
    size_t size = (size_t)(KNOWN * width_of(dataset, which)) * sizeof *blocks;
    dt_status status = DT_NEW(&bytes, size + sizeof(uint64_t), "the sums of a dataset");
    if (status == DT_OK) {
        uint64_t hash = XXH64(blocks, size, 0);
        memcpy(mempcpy(bytes, blocks, size), &hash, sizeof hash);
        status = kept_path(folder, dataset, which, path);
    }
    if (status == DT_OK)
        status = dt_make_dirs(folder);
    if (status == DT_OK)
        status = dt_write_file_atomic(path, bytes, (int64_t)(size + sizeof(uint64_t)));
    if (status != DT_OK) {
        dt_info("the next run will read all data again to check it: %s",
                dt_error_current()->message);
        dt_error_clear();
    }
    free(bytes);
}

bool dt_statistics_recall(const char *folder, const struct dt_dataset *dataset,
                          enum dt_numbers which, double *blocks)
{
    char path[DT_PATH], *bytes = NULL;
    int64_t size = KNOWN * width_of(dataset, which) * (int64_t)sizeof *blocks, found = 0;
    uint64_t hash;
    dt_status status = kept_path(folder, dataset, which, path);
    if (status == DT_OK)
        status = dt_read_file(path, size + (int64_t)sizeof hash, &bytes, &found);
    bool whole = status == DT_OK && found == size + (int64_t)sizeof hash;
    if (whole)
        memcpy(&hash, bytes + size, sizeof hash);
    whole = whole && XXH64(bytes, (size_t)size, 0) == hash;
    if (whole)
        memcpy(blocks, bytes, (size_t)size);
    free(bytes);
    dt_error_clear(); // missing or damaged: computed again
    return whole;
}
