// Tests the map of ranks, hosts, devices and CPUs, which is read from a pipe in place of stderr.
#include "job/places.h"

#include "captured.h"

static struct dt_place place(const char *host, const char *device, const char *id, int rank)
{
    struct dt_place p = {.threads = 4};
    snprintf(p.host, sizeof p.host, "%s", host);
    snprintf(p.device, sizeof p.device, "%s", device);
    snprintf(p.kind, sizeof p.kind, "%s (avx2)", device);
    if (id[0])
        snprintf(p.id, sizeof p.id, "%s%d-5678-9abc", id, rank);
    snprintf(p.cpus, sizeof p.cpus, "%d-%d", 4 * rank, 4 * rank + 3);
    return p;
}

static const char *logged_for(const struct dt_place *places, int n, bool by_tree)
{
    capture_stderr();
    dt_places_log(places, n, by_tree);
    return captured();
}

static const char *logged(const struct dt_place *places, int n)
{
    return logged_for(places, n, false);
}

// Only sums by the tree need ranks that are numbered host by host.
static void test_numbering(void)
{
    static const char warning[] = "warning: rank 2 is on another host than rank 1, though n1 has";
    struct dt_place places[4];
    for (int i = 0; i < 4; i++)
        places[i] = place(i < 2 ? "n1" : "n2", "AMD EPYC", "", i);
    CHECK(!strstr(logged_for(places, 4, true), "warning"), "host by host");
    snprintf(places[1].host, sizeof places[1].host, "n2");
    snprintf(places[2].host, sizeof places[2].host, "n1");
    const char *text = logged_for(places, 4, true);
    CHECK(strstr(text, warning), "%s", text);
    CHECK(!strstr(logged(places, 4), "warning"), "only sums by a tree mind");
}

static void test_gpus(void)
{
    struct dt_place places[4];
    for (int i = 0; i < 4; i++)
        places[i] = place(i < 2 ? "n1" : "n2", "NVIDIA H200", "GPU-1234567", i);
    CHECK_STR(logged(places, 4),
              "dtrain: n1: ranks 0-1 on NVIDIA H200 GPU-12345670 | GPU-12345671, CPUs 0-3 | 4-7, 4 "
              "threads each\n"
              "dtrain: n2: ranks 2-3 on NVIDIA H200 GPU-12345672 | GPU-12345673, CPUs 8-11 | "
              "12-15, 4 threads each\n");
    // Its first and its last rank have the same CPUs.
    snprintf(places[1].host, sizeof places[1].host, "n2");
    snprintf(places[3].cpus, sizeof places[3].cpus, "%s", places[1].cpus);
    CHECK(strstr(logged(places, 4), "n2: ranks 1-3 on NVIDIA H200 GPU-12345671 | GPU-12345672 | "
                                    "GPU-12345673, CPUs 4-7 | 8-11 | 4-7, 4 threads each\n"),
          "the CPUs of each rank");
}

static void test_job(void)
{
    struct dt_place one = place("n1", "AMD EPYC", "", 0);
    setenv("SLURM_JOB_ID", "77", 1);
    setenv("SLURM_RESTART_COUNT", "2", 1);
    CHECK_STR(logged(&one, 1), "dtrain: Slurm job 77, restart 2\n"
                               "dtrain: n1: rank 0 on AMD EPYC, CPUs 0-3, 4 threads\n");
    setenv("SLURM_ARRAY_JOB_ID", "70", 1);
    setenv("SLURM_ARRAY_TASK_ID", "3", 1);
    CHECK(strstr(logged(&one, 1), "Slurm job 77 (70_3 of the array), restart 2\n"), "the array");
    unsetenv("SLURM_JOB_ID");
}

// Returns "" if the nodes of n ranks are equal, else the message.
static const char *refused(const struct dt_place *places, int n)
{
    static struct dt_error error;
    dt_status status = dt_places_compare_nodes(places, n);
    if (status == DT_OK)
        return "";
    CHECK_INT(status, DT_USER);
    dt_error_take(&error);
    CHECK(strstr(error.hint, "run.allow_unequal_nodes"), "%s", error.hint);
    return error.message;
}

// Ranks alternate between two hosts of different kinds, one of which has more ranks.
static void test_unequal(void)
{
    struct dt_place places[5];
    for (int i = 0; i < 5; i++)
        places[i] = place(i % 2 ? "n2" : "n1", i == 3 ? "Intel" : "AMD", "", 0);
    const char *text = logged(places, 5);
    CHECK(strstr(text, "n1: ranks 0,2,4 on AMD, CPUs 0-3, 4 threads each\n"), "%s", text);
    CHECK(strstr(text, "n2: ranks 1,3 on AMD, CPUs 0-3, 4 threads each\n"), "%s", text);
    CHECK_STR(refused(places, 5), "the nodes of this job are unequal:\n"
                                  "  n2 has 2 ranks, n1 has 3 ranks\n"
                                  "  n2 (rank 3) has Intel, the others have AMD");
    CHECK_STR(refused(places, 1), "");
    CHECK_STR(refused(places, 2), "");
    CHECK_STR(refused(places + 2, 2), // one rank on each host
              "the nodes of this job are unequal:\n"
              "  n2 (rank 1) has Intel, n1 (rank 0) has AMD");
    for (int i = 0; i < 4; i++) // as many of each kind, so the first one counts as common
        places[i] = place(i % 2 ? "n2" : "n1", i % 2 ? "Intel" : "AMD", "", 0);
    CHECK_STR(refused(places, 4), "the nodes of this job are unequal:\n"
                                  "  n2 (rank 1) has Intel, n1 (rank 0) has AMD");
}

// The same CPUs with other instructions; many hosts, of which the first differs, or six do.
static void test_unequal_hosts(void)
{
    struct dt_place places[80];
    char host[16];
    for (int i = 0; i < 80; i++) {
        snprintf(host, sizeof host, "n%d", (i + 1) / 4);
        places[i] = place(host, "AMD", "", i);
    }
    CHECK_STR(refused(places, 79), "the nodes of this job are unequal:\n"
                                   "  n0 has 3 ranks, the others have 4 ranks");
    CHECK_STR(refused(places + 3, 76), "");
    snprintf(places[7].kind, sizeof places[7].kind, "AMD (sse41)");
    CHECK_STR(refused(places + 3, 76), "the nodes of this job are unequal:\n"
                                       "  n2 (rank 4) has sse41, the others have avx2");
    snprintf(places[7].kind, sizeof places[7].kind, "AMD (avx2, more)");
    CHECK(strstr(refused(places + 3, 76), "n2 (rank 4) has more, the others have AMD (avx2)"), "%s",
          dt_error_current()->message);
    for (int i = 20; i < 26; i++)
        snprintf(places[i].host, sizeof places[i].host, "m%d", i);
    const char *text = refused(places + 3, 76);
    CHECK(strstr(text, ", m20 has 1 rank, "), "%s", text);
    CHECK(strstr(text, ", 4 more differ, the others have 4 ranks\n"), "%s", text);
}

static void test_many(void)
{
    static struct dt_place places[4096];
    for (int i = 0; i < 4096; i++)
        places[i] = place(i < 2048 ? "n1" : "n2", "AMD", "", i);
    const char *text = logged(places, 4096);
    CHECK(strstr(text, "n2: ranks 2048-4095 on AMD, CPUs 8192-8195 | "), "%s", text);
    CHECK(strstr(text, "56-59 | 60-63 | …, 4 threads each\n"), "%s", text);
    CHECK(strlen(text) < 800, "%zu bytes", strlen(text));
}

static void test_programs(void)
{
    struct dt_place places[3];
    for (int i = 0; i < 3; i++)
        places[i] = place(i < 2 ? "n1" : "n2", "", "build", 0);
    CHECK_OK(dt_places_compare_programs(places, 3));
    places[2] = place("n2", "", "build", 7);
    CHECK_FAILS(dt_places_compare_programs(places, 3), DT_USER,
                "rank 2 on n2 runs another build of dtrain (build7");
}

int main(void)
{
    RUN(test_numbering, test_gpus, test_job, test_unequal, test_unequal_hosts, test_many,
        test_programs);
    return test_end();
}
