// The environment variables that dtrain sets before NCCL and CUDA start.
#include "test_nccl.h"

static void set_variable(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

// Variables that the user has set stay as they are. NVLS stays enabled only if the user asks for
// it.
void test_environment(void)
{
    static const struct {
        const char *algo, *enable; // as the user sets them
        const char *then;          // NCCL_NVLS_ENABLE after that
        bool may;
    } cases[] = {
        {NULL, NULL, "0", false},
        {"", "", "0", false},
        {"Ring", NULL, "0", false},
        {"^Tree", NULL, "0", false},
        {"^NVLS", NULL, "0", false},
        {"^nvls,NVLSTree", NULL, "0", false},
        {"allreduce:tree,ring", NULL, "0", false},
        {"broadcast:nvls", NULL, "0", false},
        {"nvls;allreduce:ring", NULL, "0", false},
        {"NVLS", NULL, NULL, true},
        {"ring,nvlstree", NULL, NULL, true},
        {"ring;AllReduce:nvls,tree", NULL, NULL, true},
        {NULL, "0", "0", false},
        {"NVLS", "0", "0", false},
        {NULL, "1", "1", true},
        {"^Tree", "2", "2", true},
        {"^NVLS", "1", "1", true}, // leaves NVLSTree
        {"^NVLSTree,NVLS", "1", "1", false},
        {"Ring", "1", "1", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_variable("NCCL_ALGO", cases[i].algo);
        set_variable("NCCL_NVLS_ENABLE", cases[i].enable);
        dt_nccl_table.prepare();
        const char *then = getenv("NCCL_NVLS_ENABLE");
        CHECK(cases[i].then ? then && strcmp(then, cases[i].then) == 0 : !then,
              "case %zu: NCCL_NVLS_ENABLE is %s", i, then ? then : "not set");
        CHECK(dt_nccl_may_use_nvls() == cases[i].may, "case %zu: NVLS is %sexcluded", i,
              cases[i].may ? "" : "not ");
    }
    set_variable("NCCL_ALGO", NULL);
    set_variable("NCCL_NVLS_ENABLE", NULL);
    for (int chosen = 0; chosen < 2; chosen++) {
        const char *queues = chosen ? "1" : "32";
        set_variable("CUDA_DEVICE_MAX_CONNECTIONS", chosen ? queues : NULL);
        dt_nccl_table.prepare();
        CHECK(strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), queues) == 0, "not %s queues", queues);
    }
}
