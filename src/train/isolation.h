// Checks on a job's shards and model that documents packed into one window do not see each other.
// In windows of data.train in which documents start, each document is computed twice more:
//   changed   after the tokens of all other documents were changed
//   apart     alone, at the start of a window
// The loss of each of its tokens must stay the same. With other documents changed it may differ by
// 1e-5 in fp32, because the decays of mamba2 are differences of sums over a whole chunk (no other
// block differs at all), and by 0.1 in bf16, which may round such a difference up to 2^-9. Apart it
// may differ by 1e-4 and 0.1, because sums are cut at other places.
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
