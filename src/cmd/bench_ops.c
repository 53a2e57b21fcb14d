// `dtrain bench`: every op.
#include "cmd/bench.h"
dt_status dt_bench_ops(const struct dt_bench_options *options)
{
    (void)options;
    return DT_FAIL(DT_USER, "dtrain bench --step", "ops are not measured yet");
}
