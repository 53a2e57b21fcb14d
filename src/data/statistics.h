// Computes mean and deviation of each column of a dataset's numbers, in double over fixed blocks of
// frames. Missing numbers (NaN) are skipped. Each rank reads some of the blocks, and the results
// are bitwise identical on any number of ranks.
#pragma once

#include "data/reader.h"
#include "data/shard_cache.h"

// Number of doubles for all blocks. A block has for each column the mean, then the sum of squared
// differences from it, then the count of numbers.
int64_t dt_statistics_size(const struct dt_dataset *dataset, enum dt_numbers which);
// Computes this rank's share of the blocks in zero-initialised `blocks`; other blocks stay zero.
// Reads the numbers once; calls `report` (may be NULL) after every few MiB with the share that is
// done.
dt_status dt_statistics_read(struct dt_shard_cache *shards, enum dt_numbers which, int rank,
                             int size, double *blocks, void (*report)(void *, double),
                             void *context);
// Merges all blocks into the first; the others become zero.
void dt_statistics_merge(const struct dt_dataset *dataset, enum dt_numbers which, double *blocks);
// Saves the merged block for later runs in a file in `folder`, if that is writable. The file's name
// is a hash of everything that the numbers and their checks depend on: stamps and hashes of the
// files, columns, heads, episodes, and versions.
void dt_statistics_keep(const char *folder, const struct dt_dataset *dataset, enum dt_numbers which,
                        const double *blocks);
// Loads the block that an earlier run saved into the first block; returns whether there is one.
bool dt_statistics_recall(const char *folder, const struct dt_dataset *dataset,
                          enum dt_numbers which, double *blocks);
// Mean and deviation of each column from merged blocks; 0 and 1 if all its numbers are missing.
// Returns how many other columns are constant, that is, have a deviation of at most FLT_EPSILON
// times the mean, or subnormal: zero up to fp32 rounding. So that rounding errors are not
// magnified, their deviation becomes 1 or, if it is not exactly zero and the mean exceeds 1, the
// mean's magnitude.
int64_t dt_statistics_finish(const struct dt_dataset *dataset, enum dt_numbers which,
                             const double *blocks, float *mean, float *deviation);
// How many numbers of a column are not missing.
double dt_statistics_count(const struct dt_dataset *dataset, enum dt_numbers which,
                           const double *blocks, int64_t column);
