// The map of ranks, hosts, devices and CPUs, seen through a pipe in stderr's place.
#include "job/places.h"

#include "test.h"

#include <fcntl.h>
#include <unistd.h>

static struct dt_place place(const char *host, const char *device, const char *id, int rank)
{
    struct dt_place p = {.threads = 4};
    snprintf(p.host, sizeof p.host, "%s", host);
    snprintf(p.device, sizeof p.device, "%s", device);
    if (id[0])
        snprintf(p.id, sizeof p.id, "%s%d-5678-9abc", id, rank);
    snprintf(p.cpus, sizeof p.cpus, "%d-%d", 4 * rank, 4 * rank + 3);
    return p;
}

static const char *logged(const struct dt_place *places, int n)
{
    static char text[1 << 16];
    int ends[2], saved = dup(STDERR_FILENO);
    CHECK(pipe2(ends, O_NONBLOCK) == 0, "no pipe");
    dup2(ends[1], STDERR_FILENO);
    dt_places_log(places, n);
    dup2(saved, STDERR_FILENO);
    ssize_t used = read(ends[0], text, sizeof text - 1);
    text[used > 0 ? used : 0] = 0;
    close(ends[0]);
    close(ends[1]);
    close(saved);
    return text;
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

// Ranks that alternate between hosts, one of which has more; of two kinds.
static void test_unequal(void)
{
    struct dt_place places[5];
    for (int i = 0; i < 5; i++)
        places[i] = place(i % 2 ? "n2" : "n1", i == 3 ? "Intel" : "AMD", "", 0);
    const char *text = logged(places, 5);
    CHECK(strstr(text, "n1: ranks 0,2,4 on AMD, CPUs 0-3, 4 threads each\n"), "%s", text);
    CHECK(strstr(text, "n2: ranks 1,3 on AMD, CPUs 0-3, 4 threads each\n"), "%s", text);
    CHECK(strstr(text, "warning: host n1 has 3 ranks, n2 has 2: "), "%s", text);
    CHECK(strstr(text, "warning: rank 0 on n1 runs on AMD, rank 3 on n2 on Intel: "), "%s", text);
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
    CHECK_INT(dt_places_compare_programs(places, 3), DT_OK);
    places[2] = place("n2", "", "build", 7);
    CHECK_INT(dt_places_compare_programs(places, 3), DT_USER);
    CHECK(strstr(dt_error_current()->message, "rank 2 on n2 runs another build of dtrain (build7"),
          "%s", dt_error_current()->message);
    dt_error_clear();
}

int main(void)
{
    test_gpus();
    test_job();
    test_unequal();
    test_many();
    test_programs();
    return test_end();
}
