// Keeps NCCL from using NVLS, which sums in the NVLink switches: their order of additions varies
// from call to call, but dtrain promises bitwise identical results.
//
// It sets NCCL_NVLS_ENABLE=0. NCCL_ALGO=^NVLS would not be enough: NCCL compares whole names, so
// NVLSTree, which sums in each host's switches, and the multicast kernels for registered memory
// would remain. NCCL_NVLS_ENABLE turns off all of these since 2.17, which introduced NVLS, and
// saves the memory of its buffers. Older versions ignore it, and NCCL_ALGO stays free for the user.
// NCCL reads both when a communicator is created; the environment wins over its files (nccl.conf).
#include "comm/comm_nccl.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char enable[] = "NCCL_NVLS_ENABLE", algo[] = "NCCL_ALGO";

// What the user's NCCL_ALGO says about NVLS and NVLSTree for an all-reduce.
enum choice { NVLS_OPEN, NVLS_ASKED_FOR, NVLS_EXCLUDED };

static bool is(const char *text, size_t length, const char *name)
{
    return strlen(name) == length && strncasecmp(text, name, length) == 0;
}

// "ring,tree": only these; "^nvls,nvlstree": all except these.
static enum choice choice_of_list(const char *list, const char *end)
{
    bool except = list < end && *list == '^', nvls = false, tree = false;
    list += except;
    while (list < end) {
        size_t length = strcspn(list, ",;");
        nvls |= is(list, length, "NVLS");
        tree |= is(list, length, "NVLSTree");
        list += length + 1;
    }
    if (except)
        return nvls && tree ? NVLS_EXCLUDED : NVLS_OPEN;
    return nvls || tree ? NVLS_ASKED_FOR : NVLS_EXCLUDED;
}

// "ring;allreduce:tree,nvls;broadcast:ring": a list for all functions, then lists of single ones
// (NCCL 2.24 and newer).
static enum choice users_choice(void)
{
    const char *entry = getenv(algo);
    enum choice choice = NVLS_OPEN;
    while (entry && *entry) {
        size_t length = strcspn(entry, ";");
        const char *end = entry + length, *colon = memchr(entry, ':', length);
        if (!colon || is(entry, (size_t)(colon - entry), "AllReduce"))
            choice = choice_of_list(colon ? colon + 1 : entry, end);
        entry = *end ? end + 1 : end;
    }
    return choice;
}

static bool is_set(const char *name)
{
    const char *text = getenv(name);
    return text && text[0];
}

// A user who asks for NVLS gets it: with NCCL_ALGO=NVLS, turning it off would leave no algorithm.
void dt_nccl_exclude_nvls(void)
{
    if (!is_set(enable) && users_choice() != NVLS_ASKED_FOR)
        setenv(enable, "0", 1); // if it fails, dt_nccl_warn_of_nvls warns
}

bool dt_nccl_may_use_nvls(void)
{
    return users_choice() != NVLS_EXCLUDED && (!is_set(enable) || strtoll(getenv(enable), NULL, 0));
}

dt_status dt_nccl_warn_of_nvls(struct dt_comm *comm)
{
    int64_t may = dt_nccl_may_use_nvls();
    DT_TRY(dt_allreduce(comm, &may, 1, DT_I64, DT_MAX));
    if (may && comm->info.rank == 0)
        dt_warn("%s and %s in the environment let NCCL sum with NVLS, whose sums differ from call "
                "to call: repeating this run will not give the same bits. Unset both, or set %s=0",
                algo, enable, enable);
    return DT_OK;
}
