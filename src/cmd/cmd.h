// Subcommands of dtrain: a row each, from which main dispatches and prints its help.
#pragma once

#include "base/error.h"
#include "comm/comm.h"
#include "job/job.h"

#include <stdbool.h>

struct dt_command {
    const char *name;
    const char *usage; // "pack -o DIR INPUT…"
    const char *help;
    bool communicates; // main opens a communicator for it; else comm is NULL
    dt_status (*run)(struct dt_comm *comm, int argc, char **argv); // argv[0] is the command's name
};

extern const struct dt_command dt_commands[]; // ends with a row without name

dt_status dt_cmd_bench(struct dt_comm *comm, int argc, char **argv);
dt_status dt_cmd_eval(struct dt_comm *comm, int argc, char **argv);
dt_status dt_cmd_info(struct dt_comm *comm, int argc, char **argv);
dt_status dt_cmd_order(struct dt_comm *comm, int argc, char **argv);
dt_status dt_cmd_pack(struct dt_comm *comm, int argc, char **argv);
dt_status dt_cmd_sample(struct dt_comm *comm, int argc, char **argv);
dt_status dt_cmd_verify(struct dt_comm *comm, int argc, char **argv);
// `dtrain --check`: the resolved configuration, data, memory plan and batch arithmetic, for people,
// on stdout.
dt_status dt_cmd_print_plan(const struct dt_job *job);
