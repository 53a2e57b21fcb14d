// Tests which ranks get which devices: how `auto` decides, and how GPUs that several ranks opened
// are found.
#include "job/device.h"
#include "job/settings.h"

#include "test.h"

static void test_all_alike(void)
{
    struct dt_device_seen seen[3] = {{"n1", 4, ""}, {"n1", 4, ""}, {"n2", 1, ""}};
    bool cuda = false;
    CHECK_OK(dt_device_decide(seen, 3, &cuda));
    CHECK(cuda, "all ranks see devices");
    for (int i = 0; i < 3; i++)
        seen[i].devices = 0;
    CHECK_OK(dt_device_decide(seen, 3, &cuda));
    CHECK(!cuda, "no rank sees one");
}

static void test_some_without(void)
{
    const struct dt_device_seen seen[4] = {
        {"n1", 0, "no driver"}, {"n1", 0, "no driver"}, {"n2", 4, ""}, {"n3", 0, "asleep"}};
    bool cuda;
    CHECK_INT(dt_device_decide(seen, 4, &cuda), DT_USER);
    CHECK_SAYS("rank 2 on host n2 sees a CUDA device, but rank 0 on host n1 does not: no driver");
    CHECK_ADVISES("run.device = cpu");
    CHECK_INT(dt_device_decide(seen + 2, 2, &cuda), DT_USER);
    CHECK_SAYS("rank 0 on host n2 sees a CUDA device, but rank 1 on host n3 does not: asleep");
}

static void test_one_each(void)
{
    const struct dt_device_opened opened[] = {{"n1", "GPU-a", 2},
                                              {"n1", "GPU-b", 2},
                                              {"n2", "GPU-a", 2}, // the same name on another host
                                              {"n2", "", 1}, // unnamed devices cannot be told apart
                                              {"n2", "", 1}};
    CHECK_OK(dt_device_refuse_shared(opened, 5));
    for (int i = 0; i < 5; i++)
        CHECK_INT(dt_device_ranks_on(opened, 5, i), 1);
}

static void test_shared(void)
{
    const struct dt_device_opened opened[] = {{"n1", "GPU-a", 4}, {"n2", "GPU-b", 2},
                                              {"n2", "GPU-c", 2}, {"n2", "GPU-b", 2},
                                              {"n2", "GPU-c", 2}, {"n2", "GPU-b", 2}};
    CHECK_INT(dt_device_ranks_on(opened, 6, 0), 1);
    CHECK_INT(dt_device_ranks_on(opened, 6, 1), 3);
    CHECK_INT(dt_device_ranks_on(opened, 6, 4), 2);
    CHECK_INT(dt_device_ranks_on(opened, 6, 5), 3);
    CHECK_INT(dt_device_refuse_shared(opened, 6), DT_USER);
    CHECK_SAYS("host n2: ranks 1, 3 and 5 would share one GPU, GPU-b (5 ranks there, 2 devices "
               "visible)");
    CHECK_ADVISES("ppr:2:node");
    CHECK_ADVISES("--gres=gpu:5");
    CHECK_ADVISES("run.share_device = true");
    CHECK_INT(dt_device_refuse_shared(opened + 2, 3), DT_USER);
    CHECK_SAYS("host n2: ranks 0 and 2 would share one GPU, GPU-c");
}

// More ranks than a message has room for.
static void test_many(void)
{
    enum { MANY = 1000 };
    static struct dt_device_opened opened[MANY];
    for (int i = 0; i < MANY; i++)
        opened[i] = (struct dt_device_opened){"n1", "GPU-a", 1};
    CHECK_INT(dt_device_ranks_on(opened, MANY, 7), MANY);
    CHECK_INT(dt_device_refuse_shared(opened, MANY), DT_USER);
    CHECK_SAYS("host n1: ranks 0, 1, 2, ");
    CHECK_SAYS("GPU-a (1000 ranks there, 1 device visible)");
}

// This build has no CUDA: `auto` takes the CPU, and `cuda` says how to get a build with CUDA.
static void test_open_alone(void)
{
    struct dt_backend backend;
    if (dt_backend_find("cuda"))
        return;
    CHECK_OK(dt_device_open_alone(DT_DEVICE_AUTO, 0, &backend));
    CHECK_STR(backend.table->name, "cpu");
    dt_backend_close(&backend);
    CHECK_INT(dt_device_check_threads("--threads", 4096), DT_USER);
    CHECK_SAYS("--threads: 4096, but only ");
    CHECK_OK(dt_device_check_threads("--threads", 1));
    CHECK_INT(dt_device_open_alone(DT_DEVICE_CUDA, 1, &backend), DT_USER);
    CHECK_SAYS("this build of dtrain has no CUDA");
    CHECK_ADVISES("-DDTRAIN_CUDA=ON");
    CHECK(!backend.device, "nothing is left open");
}

int main(void)
{
    RUN(test_all_alike, test_some_without, test_one_each, test_shared, test_many, test_open_alone);
    return test_end();
}
