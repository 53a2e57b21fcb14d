// Compares and prints the places of all ranks. Lines stay short with many ranks: equal entries are
// printed once, and long lists are cut.
#include "job/places.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/problems.h"
#include "base/text.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>

enum {
    LISTED = 16,              // entries per line
    ID_SHOWN = 12,            // characters of "GPU-5f1c2b3a-…"
    ODD_LISTED = 4,           // differing hosts
    NAME = DT_HOST_NAME + 32, // "n3 (rank 12)"
};

// ---- the program: the build id that the linker wrote into it, in hex

static int find_build_id(struct dl_phdr_info *program, size_t size, void *text)
{
    (void)size;
    for (int i = 0; i < program->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &program->dlpi_phdr[i];
        const char *at = (const char *)(program->dlpi_addr + segment->p_vaddr);
        const char *end = at + segment->p_memsz;
        while (segment->p_type == PT_NOTE && at + sizeof(ElfW(Nhdr)) < end) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            const char *name = at + sizeof *note, *bytes = name + (note->n_namesz + 3) / 4 * 4;
            if (note->n_type == NT_GNU_BUILD_ID && strcmp(name, "GNU") == 0)
                for (unsigned k = 0; k < note->n_descsz && k < 20; k++)
                    dt_append(text, sizeof((struct dt_place *)0)->id, "%02x",
                              (unsigned char)bytes[k]);
            at = bytes + (note->n_descsz + 3) / 4 * 4;
        }
    }
    return 1; // the program itself is first
}

dt_status dt_places_compare_programs(const struct dt_place *places, int n)
{
    for (int i = 1; i < n; i++)
        if (strcmp(places[i].id, places[0].id) != 0)
            return DT_FAIL(DT_USER,
                           "start all ranks from one file that all hosts see, or copy it to "
                           "every host again",
                           "rank %d on %s runs another build of dtrain (%.12s) than rank 0 on %s "
                           "(%.12s)",
                           i, places[i].host, places[i].id, places[0].host, places[0].id);
    return DT_OK;
}

static dt_status gather(struct dt_comm *comm, const struct dt_place *mine, struct dt_place **all)
{
    int n = comm->info.size;
    DT_TRY(dt_agree(comm, DT_NEW(all, n, "the places of %d ranks", n)));
    (*all)[comm->info.rank] = *mine;
    snprintf((*all)[comm->info.rank].host, sizeof mine->host, "%s", comm->info.host);
    return dt_all_gather(comm, *all, sizeof **all);
}

dt_status dt_places_check_program(struct dt_comm *comm)
{
    struct dt_place mine = {0}, *all;
    dl_iterate_phdr(find_build_id, mine.id);
    dt_status status = gather(comm, &mine, &all);
    if (status == DT_OK)
        status = dt_agree(
            comm, comm->info.rank == 0 ? dt_places_compare_programs(all, comm->info.size) : DT_OK);
    free(all);
    return status;
}

// ---- the map

static bool on_host(const struct dt_place *place, const struct dt_place *first)
{
    return strcmp(place->host, first->host) == 0;
}

// Lists the ranks on the host of `first`, "0-3,6". Returns their number.
static int list_ranks(const struct dt_place *places, int n, int first, char *text, size_t size)
{
    int ranks = 0;
    for (int i = first; i < n; i++) {
        int last = i;
        if (!on_host(&places[i], &places[first]))
            continue;
        while (last + 1 < n && on_host(&places[last + 1], &places[first]))
            last++;
        dt_append(text, size, last > i ? "%s%d-%d" : "%s%d", ranks ? "," : "", i, last);
        ranks += last - i + 1;
        i = last;
    }
    return ranks;
}

// Lists the ids or CPUs of the ranks on a host, "0-7 | 8-15", or once if all are equal.
static void list_fields(const struct dt_place *places, int n, int first, size_t field, int shown,
                        char *text, size_t size)
{
    const char *of_first = (const char *)&places[first] + field;
    bool equal = true;
    int listed = 0;
    for (int i = first; i < n; i++)
        if (on_host(&places[i], &places[first]))
            equal = equal && strcmp((const char *)&places[i] + field, of_first) == 0;
    for (int i = first; i < n && listed <= LISTED; i++) {
        if (!on_host(&places[i], &places[first]) || (equal && listed > 0))
            continue;
        if (listed++ < LISTED)
            dt_append(text, size, "%s%.*s", listed > 1 ? " | " : "", shown,
                      (const char *)&places[i] + field);
        else
            dt_append(text, size, " | …");
    }
}

static void log_host(const struct dt_place *places, int n, int first)
{
    const struct dt_place *one = &places[first];
    char ranks[256] = "", ids[512] = "", cpus[1024] = "";
    int count = list_ranks(places, n, first, ranks, sizeof ranks);
    list_fields(places, n, first, offsetof(struct dt_place, id), ID_SHOWN, ids, sizeof ids);
    list_fields(places, n, first, offsetof(struct dt_place, cpus), (int)sizeof one->cpus, cpus,
                sizeof cpus);
    dt_info("%s: rank%s %s on %s%s%s, CPUs %s, %s%s", one->host, count > 1 ? "s" : "", ranks,
            one->device, ids[0] ? " " : "", ids, cpus, DT_COUNT(one->threads, "threads"),
            count > 1 ? " each" : "");
}

static const char *variable(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

void dt_places_log(const struct dt_place *places, int n, bool by_tree)
{
    int again = 0; // ranks that return to an earlier host
    const char *job = variable("SLURM_JOB_ID"), *array = variable("SLURM_ARRAY_JOB_ID");
    const char *task = variable("SLURM_ARRAY_TASK_ID"), *restarts = variable("SLURM_RESTART_COUNT");
    char member[64] = "";
    if (array && task)
        snprintf(member, sizeof member, " (%.20s_%.20s of the array)", array, task);
    if (job)
        dt_info("Slurm job %s%s, restart %s", job, member, restarts ? restarts : "0");
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int k = 0; k < i && !seen; k++)
            seen = on_host(&places[k], &places[i]);
        if (!seen)
            log_host(places, n, i);
        else if (!again && !on_host(&places[i], &places[i - 1]))
            again = i;
    }
    if (by_tree && again)
        dt_warn("rank %d is on another host than rank %d, though %s has ranks before it: with "
                "comm.reduce = reproducible neighbours exchange the largest messages. Number ranks "
                "host by host (mpirun --map-by ppr:N:node, Slurm: --distribution=block)",
                again, again - 1, places[again].host);
}

// ---- unequal nodes

// A property that nodes should share, as text per rank.
struct trait {
    char text[DT_DEVICE_TEXT];
};

// The first rank with the most common value.
static int find_common(const struct trait *traits, int n)
{
    int common = 0, most = 0;
    for (int i = 0; i < n && most < n - i; i++) {
        int equal = 0;
        for (int k = i; k < n; k++)
            equal += strcmp(traits[i].text, traits[k].text) == 0;
        common = equal > most ? i : common;
        most = equal > most ? equal : most;
    }
    return common;
}

static const char *name(const struct dt_place *places, int rank, bool of_rank, char who[NAME])
{
    snprintf(who, NAME, of_rank ? "%s (rank %d)" : "%s", places[rank].host, rank);
    return who;
}

// Adds "n3 has 3 ranks, the others have 4 ranks" for hosts that differ from most.
static void add_differences(const struct dt_place *places, const struct trait *traits, int n,
                            bool of_rank, struct dt_problems *problems)
{
    char text[DT_PROBLEM_LINE] = "", who[NAME];
    const char *others = ""; // separator before the common value
    int common = find_common(traits, n), odd = 0, equal = 0;
    for (int i = 0; i < n; i++) {
        bool again = false; // the host was listed
        for (int k = 0; k < i && !again; k++)
            again = on_host(&places[k], &places[i]) && strcmp(traits[k].text, traits[i].text) == 0;
        if (again)
            continue;
        if (strcmp(traits[i].text, traits[common].text) == 0)
            equal++;
        else if (odd++ < ODD_LISTED) {
            dt_append(text, sizeof text, "%s has ", name(places, i, of_rank, who));
            dt_append_difference(text, sizeof text, traits[i].text, traits[common].text);
            dt_append(text, sizeof text, ", ");
            others = odd == 1 ? traits[i].text : "";
        }
    }
    if (odd == 0)
        return;
    if (odd > ODD_LISTED)
        dt_append(text, sizeof text, "%d more differ, ", odd - ODD_LISTED);
    if (equal > 1)
        dt_append(text, sizeof text, "the others have ");
    else
        dt_append(text, sizeof text, "%s has ", name(places, common, of_rank, who));
    dt_append_difference(text, sizeof text, traits[common].text, others);
    dt_problems_add(problems, "%s", text);
}

dt_status dt_places_compare_nodes(const struct dt_place *places, int n)
{
    struct dt_problems problems = {0};
    struct trait *traits;
    DT_TRY(DT_NEW(&traits, n, "the places of %d ranks", n));
    for (int of_rank = 0; of_rank < 2; of_rank++) { // first ranks per host, then devices
        for (int i = 0; i < n; i++) {
            int ranks = 0;
            for (int k = 0; k < n; k++)
                ranks += on_host(&places[k], &places[i]);
            snprintf(traits[i].text, sizeof traits->text, "%s",
                     of_rank ? places[i].kind : DT_COUNT(ranks, "ranks"));
        }
        add_differences(places, traits, n, of_rank, &problems);
    }
    free(traits);
    return dt_problems_report(
        &problems,
        "start the same number of ranks on each node (mpirun --map-by ppr:4:node, Slurm: "
        "--ntasks-per-node=4), on devices of one kind (Slurm: --constraint), or set "
        "run.allow_unequal_nodes = true: the slowest rank then sets the pace, and on other devices "
        "results differ in their last bits",
        "the nodes of this job are unequal");
}

dt_status dt_places_check(struct dt_comm *comm, const struct dt_place *mine, bool print,
                          bool by_tree, bool allow_unequal)
{
    struct dt_place *all;
    bool root = comm->info.rank == 0;
    dt_status status;
    DT_TRY_GOTO(status, out, gather(comm, mine, &all));
    if (root && print)
        dt_places_log(all, comm->info.size, by_tree);
    if (root)
        status = dt_places_compare_nodes(all, comm->info.size);
    if (status == DT_USER && allow_unequal) {
        dt_warn("%s", dt_error_current()->message);
        dt_error_clear();
        status = DT_OK;
    }
    status = dt_agree(comm, status);
out:
    free(all);
    return status;
}
