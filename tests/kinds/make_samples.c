// make_samples PATH SEED N: writes a shard of N positions. Samples are noise. A target is the sum
// of parts of its sample and of the sample before, which a model with a short memory can learn.
#include "samples.h"

#include "base/rng.h"

#include "unit/shards.h"

int main(int argc, char **argv)
{
    int64_t n = argc == 4 ? atoll(argv[3]) : 0;
    float *samples = calloc((size_t)(n + 1) * SAMPLE_WIDTH, sizeof *samples),
          *targets = calloc((size_t)(n + 1) * TARGET_WIDTH, sizeof *targets);
    if (n < 1 || !samples || !targets)
        return 2;
    struct dt_philox rng = dt_philox_init((uint64_t)atoll(argv[2]), 0, 0);
    for (int64_t i = 0; i < n * SAMPLE_WIDTH; i++)
        samples[i] = dt_philox_normal(&rng);
    for (int64_t i = 0; i < n * TARGET_WIDTH; i++) {
        int64_t t = i / TARGET_WIDTH, j = i % TARGET_WIDTH;
        targets[i] = samples[t * SAMPLE_WIDTH + j] +
                     (t > 0 ? 0.5f * samples[(t - 1) * SAMPLE_WIDTH + SAMPLE_WIDTH - 1 - j] : 0);
    }
    hid_t file = new_file(argv[1]);
    put(file, &(struct put){.name = "/samples",
                            .disk = H5T_IEEE_F32LE,
                            .memory = H5T_NATIVE_FLOAT,
                            .n_dims = 2,
                            .dims = {(hsize_t)n, SAMPLE_WIDTH},
                            .data = samples});
    put(file, &(struct put){.name = "/wanted",
                            .disk = H5T_IEEE_F32LE,
                            .memory = H5T_NATIVE_FLOAT,
                            .n_dims = 2,
                            .dims = {(hsize_t)n, TARGET_WIDTH},
                            .data = targets});
    H5Fclose(file);
    free(samples);
    free(targets);
    return test_failures > 0;
}
