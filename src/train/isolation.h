// Checks on a job's shards and model that documents packed into one window do not see each other.
// In windows of data.train in which documents start, each document is computed twice more, and the
// loss of each of its tokens must stay the same: - after the tokens of every other document were
// changed. Within 1e-5 in fp32: only mamba2 differs
//   at all, whose decays are differences of sums over a whole chunk. Within 0.1 in bf16, to whose
//   2^-9 such a difference may be rounded up.
// - apart, alone at the start of a window: within 1e-4 and 0.1, since sums are cut elsewhere.
#pragma once

#include "job/job.h"

struct dt_isolation {
    int64_t windows, documents, tokens; // compared
    struct dt_difference {
        double largest, allowed; // differences of a token's loss
    } changed, apart;
};

// Uses the weights of the checkpoint that training would resume from, of run.init_from, or initial
// weights. DT_MACHINE names the first position whose loss depends on another document; DT_USER: no
// documents start inside windows, or the model does not read tokens.
dt_status dt_isolation_check(struct dt_job *job, struct dt_isolation *result);
