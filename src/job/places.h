// A place is where a rank of a job runs: host, device, CPUs. Places are gathered, printed once at a
// start, and compared: nodes that are not equal are refused.
#pragma once

#include "comm/comm.h"

enum { DT_DEVICE_TEXT = 320 };

struct dt_place {
    char host[DT_HOST_NAME];
    char device[128];          // "NVIDIA H200", "AMD EPYC 9575F"
    char kind[DT_DEVICE_TEXT]; // the same and what it can do: the bits of results depend on it
    char id[64];               // "GPU-5f1c…"; "" where ranks may share it
    char cpus[64];             // "0-7"
    int threads;
};

// Collective: refuses ranks of different builds of dtrain, before they exchange any structs.
dt_status dt_places_check_program(struct dt_comm *comm);
// Collective: rank 0 prints the map if `print`; by_tree: as dt_places_log. DT_USER where nodes are
// unequal; a warning if they are allowed to be.
dt_status dt_places_check(struct dt_comm *comm, const struct dt_place *mine, bool print,
                          bool by_tree, bool allow_unequal);

// The parts of these checks that need no communication.
dt_status dt_places_compare_programs(const struct dt_place *places, int n);
// DT_USER naming the hosts whose number of ranks differs from that of most ranks' hosts, and those
// with another device: one of another name or other features, whose results have other bits.
dt_status dt_places_compare_nodes(const struct dt_place *places, int n);
// One line a host by dt_info, short however many ranks it has: equal entries once, long lists cut.
// by_tree: warns where ranks are not numbered host by host, which makes sums in the order
// DT_SUM_TREE (comm/sum_tree.h) send much between hosts.
void dt_places_log(const struct dt_place *places, int n, bool by_tree);
