// Collectives on known values: what each rank puts in, what must come out, and which rank a wrong
// value comes from. `dtrain bench --comm` checks its results by them; the self-test is its short
// form for the start of a run.
#pragma once

#include "comm/device_comm.h"

// Sums are exact in every type, in any order. Most elements of a sum are not zero on one rank
// alone, which a wrong sum names; every size + 1-th is the sum of all ranks (of bf16 and more than
// 64 ranks, of the first 64).
struct dt_known_values {
    struct dt_comm_info info;
    struct dt_collective collective; // data and mine are not used
    int64_t period;
    char *input, *expected; // [period]; where values are only moved, the same
};

dt_status dt_known_open(const struct dt_comm_info *info, const struct dt_collective *collective,
                        struct dt_known_values *known);
void dt_known_close(struct dt_known_values *known);
// Elements of `data`: count, or size * count where it is in blocks.
int64_t dt_known_elements(const struct dt_known_values *known);
// Writes elements [first, first + n) of what this rank puts into `data` (an exchange: into `mine`),
// zeros where it puts nothing, to `to` [n].
void dt_known_fill(const struct dt_known_values *known, int64_t first, int64_t n, void *to);
// How many of the elements [first, first + n) of `data`, which are in `from` [n], are wrong after
// the collective. Adds them to wrong_from [size + 1] by the rank they come from; those of no one
// rank are its last.
int64_t dt_known_check(const struct dt_known_values *known, int64_t first, int64_t n,
                       const void *from, int64_t *wrong_from);
// Whom a rank exchanges with here: the one half the job away, so that pairs are on two hosts where
// there are several. -1: nobody (the last rank of an odd number).
int dt_known_partner(const struct dt_comm_info *info);

// The order of sums number `at` of this operation and type here: the fast one, then the tree where
// it can be. False after the last.
bool dt_known_order(const struct dt_comm_info *info, enum dt_operation operation,
                    enum dt_dtype dtype, int at, enum dt_sum_order *order);

// Every collective in host memory on a few sizes, in well under a second. Collective; where a value
// is wrong on any rank, every rank has the same error, which names the operation and the rank that
// most wrong values came from or arrived at.
dt_status dt_comm_selftest(struct dt_comm *comm);
// The same in device memory, on a communicator opened with this configuration: every one of its
// collectives equally often, so that its watchdog counts the steps that follow as before.
dt_status dt_device_comm_selftest(const struct dt_device_comm_config *config,
                                  struct dt_device_comm *device);
