// Which GEMM algorithms a job uses: rank 0 chooses, all ranks use the same. They are kept in the
// run's folder, gemm.json, so that a resumed run keeps its bits, and in the user's cache
// ($XDG_CACHE_HOME/dtrain, else ~/.cache/dtrain) with those of other runs on the same device and
// libraries, so that the next run starts quickly. A cache that cannot be read or written is no
// error.
#pragma once

#include "job/job.h"

// Collective; for a training job, before its model is allocated. Nothing on devices that have
// nothing to choose, and with comm.reduce = reproducible, whose runs must not depend on timing: the
// library's first choice is used.
dt_status dt_gemm_algos_apply(struct dt_job *job);
// Collective; for other jobs: uses what the run chose, if it did. Times and writes nothing.
dt_status dt_gemm_algos_recall(struct dt_job *job);

// All shapes of two records of the same device and library, `first` deciding where both have one.
// *merged (malloc'ed) is `first` alone where `second` is NULL, no record, or of others.
dt_status dt_gemm_algos_merge(const char *first, const char *second, char **merged);
