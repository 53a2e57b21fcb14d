// make_frames PATH SEED N: a shard of N positions. Frames are noise; a target is the sum of some of
// the frame and of the one before, which a model with a short memory can learn.
#include "frames.h"

#include "base/rng.h"

#include "unit/shards.h"

int main(int argc, char **argv)
{
    int64_t n = argc == 4 ? atoll(argv[3]) : 0;
    float *frames = calloc((size_t)(n + 1) * FRAME_WIDTH, sizeof *frames),
          *targets = calloc((size_t)(n + 1) * TARGET_WIDTH, sizeof *targets);
    if (n < 1 || !frames || !targets)
        return 2;
    struct dt_philox rng = dt_philox_init((uint64_t)atoll(argv[2]), 0, 0);
    for (int64_t i = 0; i < n * FRAME_WIDTH; i++)
        frames[i] = dt_philox_normal(&rng);
    for (int64_t i = 0; i < n * TARGET_WIDTH; i++) {
        int64_t t = i / TARGET_WIDTH, j = i % TARGET_WIDTH;
        targets[i] = frames[t * FRAME_WIDTH + j] +
                     (t > 0 ? 0.5f * frames[(t - 1) * FRAME_WIDTH + FRAME_WIDTH - 1 - j] : 0);
    }
    hid_t file = new_file(argv[1]);
    put(file, &(struct put){.name = "/positions",
                            .disk = H5T_IEEE_F32LE,
                            .memory = H5T_NATIVE_FLOAT,
                            .n_dims = 2,
                            .dims = {(hsize_t)n, FRAME_WIDTH},
                            .data = frames});
    put(file, &(struct put){.name = "/wanted",
                            .disk = H5T_IEEE_F32LE,
                            .memory = H5T_NATIVE_FLOAT,
                            .n_dims = 2,
                            .dims = {(hsize_t)n, TARGET_WIDTH},
                            .data = targets});
    H5Fclose(file);
    free(frames);
    free(targets);
    return test_failures > 0;
}
