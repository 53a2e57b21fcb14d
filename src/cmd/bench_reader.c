// `dtrain bench --reader`.
#include "cmd/bench.h"

dt_status dt_bench_reader(const struct dt_bench_options *options)
{
    (void)options;
    return DT_FAIL(DT_USER, "dtrain bench --step", "the reader is not measured yet");
}
