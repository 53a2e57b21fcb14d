// Where the ranks of a job run: host, device, CPUs. Gathered, compared, and printed once at a
// start.
#pragma once

#include "comm/comm.h"

#include <stdio.h>

struct dt_place {
    char host[DT_HOST_NAME];
    char device[128]; // "NVIDIA H200", "AMD EPYC 9575F"
    char id[64];      // "GPU-5f1c…"; "" where ranks may share it
    char cpus[64];    // "0-7"
    int threads;
};

// Collective: refuses ranks of different builds of dtrain, before they exchange any structs.
dt_status dt_places_check_program(struct dt_comm *comm);
// Collective: rank 0 prints the map and warns of ranks that differ in what sets their pace.
dt_status dt_places_print(struct dt_comm *comm, const struct dt_place *mine);

// Its parts, apart from communication.
dt_status dt_places_compare_programs(const struct dt_place *places, int n);
// Of n ranks: one line a host, then one for each warning, by dt_info and dt_warn.
void dt_places_log(const struct dt_place *places, int n);
