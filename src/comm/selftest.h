// Collectives on known values: the input of each rank, the expected result, and the rank that a
// wrong value comes from. `dtrain bench --comm` checks its results with them; the self-test is a
// short form for the start of a run.
#pragma once

#include "comm/device_comm.h"

// Sums are exact in every type and order. Most elements of a sum are non-zero on a single rank, so
// a wrong sum names that rank; every (size + 1)-th element is a sum of all ranks (bf16: of at most
// the first 64).
struct dt_known_values {
    struct dt_comm_info info;
    struct dt_collective collective; // data and mine are not used
    int64_t period;
    char *input, *expected; // [period]; the same array if values are only moved
};

dt_status dt_known_open(const struct dt_comm_info *info, const struct dt_collective *collective,
                        struct dt_known_values *known);
void dt_known_close(struct dt_known_values *known);
// Elements of `data`: count, or size * count if it has blocks.
int64_t dt_known_elements(const struct dt_known_values *known);
// Writes elements [first, first + n) of this rank's input `data` (an exchange: `mine`) to `to` [n];
// zeros where it has no input.
void dt_known_fill(const struct dt_known_values *known, int64_t first, int64_t n, void *to);
// Counts the elements [first, first + n) of `data`, given in `from` [n], that are wrong after the
// collective. Adds them to wrong_from [size + 1] by the rank that they come from; the last entry is
// for sums of all ranks.
int64_t dt_known_check(const struct dt_known_values *known, int64_t first, int64_t n,
                       const void *from, int64_t *wrong_from);
// A rank's partner in an exchange: half the job away, so that pairs span hosts if there are
// several. -1: none (the last rank of an odd number).
int dt_known_partner(const struct dt_comm_info *info);

// The `at`-th order of sums to test for this operation and type: the fast one, then the tree if
// possible. False after the last.
bool dt_known_order(const struct dt_comm_info *info, enum dt_operation operation,
                    enum dt_dtype dtype, int at, enum dt_sum_order *order);

// Tests every collective in host memory at a few sizes, in well under a second. Collective. If a
// value is wrong on any rank, every rank gets the same error, which names the operation and the
// rank that most wrong values came from or arrived at.
dt_status dt_comm_selftest(struct dt_comm *comm);
// Tests collectives in device memory on a communicator opened with this configuration. Runs each of
// its collectives equally often, so that the watchdog's step counts stay consistent.
dt_status dt_device_comm_selftest(const struct dt_device_comm_config *config,
                                  struct dt_device_comm *device);
