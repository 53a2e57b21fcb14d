// Computes mean and deviation of each column of a dataset's numbers, in double over fixed
// blocks of frames. Missing numbers (NaN) are left out. The results are bitwise identical on any
// number of ranks, each of which reads some of the blocks.
#pragma once

#include "data/reader.h"
#include "data/shard_cache.h"

// Doubles that hold what is known of all blocks: for each its columns' means, then the sums of
// squares of the distances from them, then how many numbers there are.
int64_t dt_statistics_size(const struct dt_dataset *dataset, enum dt_numbers which);
// Computes this rank's share of the blocks into `blocks`, which is zero at the start and elsewhere
// remains it. Reads the numbers once; calls `report` (may be NULL) after every few MiB, with the
// share that is done.
dt_status dt_statistics_read(struct dt_shard_cache *shards, enum dt_numbers which, int rank,
                             int size, double *blocks, void (*report)(void *, double),
                             void *context);
// Merges all blocks into the first, the others become zero.
void dt_statistics_merge(const struct dt_dataset *dataset, enum dt_numbers which, double *blocks);
// Keeps the merged block for later runs in a file of `folder`, where that can be written. Its name
// is of all that the numbers and their checks depend on: stamps and hashes of the files, columns,
// heads, episodes, and versions.
void dt_statistics_keep(const char *folder, const struct dt_dataset *dataset, enum dt_numbers which,
                        const double *blocks);
// Whether an earlier run kept one, which is then the first of the blocks.
bool dt_statistics_recall(const char *folder, const struct dt_dataset *dataset,
                          enum dt_numbers which, double *blocks);
// From merged blocks, one mean and deviation a column: 0 and 1 where all of its numbers are
// missing. Returns how many other columns are constant: their deviation is zero up to the rounding
// of fp32, in which they are read: at most FLT_EPSILON times the mean, or subnormal. What is left
// of such a column must not be magnified: its deviation is 1 or, if rounding errors make it vary
// and its mean is larger than 1, the mean's magnitude.
int64_t dt_statistics_finish(const struct dt_dataset *dataset, enum dt_numbers which,
                             const double *blocks, float *mean, float *deviation);
// How many numbers of a column are there.
double dt_statistics_count(const struct dt_dataset *dataset, enum dt_numbers which,
                           const double *blocks, int64_t column);
