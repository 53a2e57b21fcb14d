// The table of metric sinks. A new sink needs its file, its declaration and its row.
#include "train/metrics.h"

extern const struct dt_metric_sink dt_sink_console, dt_sink_jsonl, dt_sink_tensorboard;

const struct dt_metric_sink *const dt_metric_sinks[] = {
    &dt_sink_console,
    &dt_sink_jsonl,
    &dt_sink_tensorboard,
    NULL,
};
