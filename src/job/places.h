// A place is where a rank of a job runs: host, device, CPUs. At the start of a run, places are
// gathered, printed and compared; unequal nodes are refused.
#pragma once

#include "comm/comm.h"

enum { DT_DEVICE_TEXT = 320 };

struct dt_place {
    char host[DT_HOST_NAME];
    char device[128];          // "NVIDIA H200", "AMD EPYC 9575F"
    char kind[DT_DEVICE_TEXT]; // device and features, on which the bits of results depend
    char id[64];               // "GPU-5f1c…"; "" where ranks may share it
    char cpus[64];             // "0-7"
    int threads;
};

// Collective: refuses ranks of different builds of dtrain before they exchange structs.
dt_status dt_places_check_program(struct dt_comm *comm);
// Collective: rank 0 prints the map if `print` (by_tree: see dt_places_log). Unequal nodes are
// DT_USER, or a warning if they are allowed.
dt_status dt_places_check(struct dt_comm *comm, const struct dt_place *mine, bool print,
                          bool by_tree, bool allow_unequal);

// The parts of these checks without communication.
dt_status dt_places_compare_programs(const struct dt_place *places, int n);
// DT_USER naming the hosts whose number of ranks, or whose device (name or features, on which bits
// depend), differs from that of most ranks' hosts.
dt_status dt_places_compare_nodes(const struct dt_place *places, int n);
// Logs one short line per host: equal entries once, long lists cut. by_tree: warns if ranks are not
// numbered host by host, which makes sums in the order DT_SUM_TREE (comm/sum_tree.h) send more
// between hosts.
void dt_places_log(const struct dt_place *places, int n, bool by_tree);
