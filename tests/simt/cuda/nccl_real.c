// Checks that the real NCCL of this machine opens, has every function that dtrain calls, and
// reports its version. Needs no GPU.
#include "comm/device_comm.h"
#include "test.h"

int main(void)
{
    char version[64] = "";
    int major = 0, minor = 0;
    if (dt_nccl_table.version(version, sizeof version) != DT_OK) {
        fprintf(stderr, "skipped: %s\n", dt_error_current()->message);
        return TEST_SKIP;
    }
    fprintf(stderr, "NCCL %s\n", version);
    CHECK(sscanf(version, "%d.%d.", &major, &minor) == 2, "the version is \"%s\"", version);
    CHECK(major == 2 && minor >= 14, "the version is \"%s\"", version);
    return test_end();
}
