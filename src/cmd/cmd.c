// The table of subcommands.
#include "cmd/cmd.h"

#include <stddef.h>

const struct dt_command dt_commands[] = {
    {"pack", "pack -o DIR INPUT…", "text or raw token files into HDF5 shards", false, dt_cmd_pack},
    {"verify", "verify PATH…", "check shards and checkpoints", false, dt_cmd_verify},
    {"order", "order CONFIG --steps A:B", "which window is trained when, a line each", true,
     dt_cmd_order},
    {"eval", "eval CONFIG [key=value …]", "validation loss of the run's newest checkpoint", true,
     dt_cmd_eval},
    {"sample", "sample RUN [--prompt TEXT]", "let a trained model write", false, dt_cmd_sample},
    {"bench", "bench [--step]", "time every op, or a whole step", false, dt_cmd_bench},
    {"info", "info", "devices, versions, features", false, dt_cmd_info},
    {NULL, NULL, NULL, false, NULL},
};
