// Reads from the environment which faults and algorithms to use. "@R" restricts a fault to rank R:
//   SIMT_NCCL_ERROR=N[@R]   ncclSystemError, reported when the N-th collective (from 1) begins
//   SIMT_NCCL_STALL=N[@R]   the N-th collective never ends
//   SIMT_NCCL_HANG=N[@R]    the N-th call never ends
//   SIMT_NCCL_INIT=stall[@R] or fail[@R]
//   SIMT_NCCL_DEAF=1        a peer that is gone is no error, as among the GPUs of one real host
//
// SIMT_NCCL_NVLS=1: the machine has NVLS, which makes sums unless the environment excludes it.
#include "tests/simt/cuda/nccl_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// The text of a setting that applies to this rank, or NULL.
static const char *setting(const char *name, int rank)
{
    const char *text = getenv(name), *at = text ? strchr(text, '@') : NULL;
    return at && atoi(at + 1) != rank ? NULL : text;
}

static int64_t number(const char *name, int rank)
{
    const char *text = setting(name, rank);
    return text ? atoll(text) : 0;
}

// Whether NCCL_ALGO allows NVLS for an all-reduce on one host. Names are compared whole, as NCCL
// does: NVLSTree is another one.
static bool allows_nvls(const char *algo)
{
    char text[256], *entries, *names;
    bool allows = true;
    snprintf(text, sizeof text, "%s", algo);
    for (char *entry = strtok_r(text, ";", &entries); entry;
         entry = strtok_r(NULL, ";", &entries)) {
        char *colon = strchr(entry, ':'), *list = colon ? colon + 1 : entry;
        if (colon && strncasecmp(entry, "allreduce:", 10) != 0)
            continue;
        bool except = *list == '^', named = false;
        for (char *name = strtok_r(list + except, ",", &names); name;
             name = strtok_r(NULL, ",", &names))
            named |= strcasecmp(name, "nvls") == 0;
        allows = named != except;
    }
    return allows;
}

void read_settings(struct ncclComm *comm)
{
    const char *init = setting("SIMT_NCCL_INIT", comm->rank);
    const char *enable = getenv("NCCL_NVLS_ENABLE"), *algo = getenv("NCCL_ALGO");
    bool on = !enable || !enable[0] || strtoll(enable, NULL, 0) != 0;
    comm->nvls = getenv("SIMT_NCCL_NVLS") && on && (!algo || allows_nvls(algo));
    comm->stall_at = number("SIMT_NCCL_STALL", comm->rank);
    comm->error_at = number("SIMT_NCCL_ERROR", comm->rank);
    comm->hang_at = number("SIMT_NCCL_HANG", comm->rank);
    comm->deaf = getenv("SIMT_NCCL_DEAF") != NULL;
    comm->never_joins = init && strncmp(init, "stall", 5) == 0;
    if (init && strncmp(init, "fail", 4) == 0)
        turn_bad(comm, ncclSystemError, "the fault that was asked for");
}
