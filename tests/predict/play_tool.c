// play_tool MODEL DATA PREDICTIONS: plays the episodes of a robomimic file step by step with
// libdtrain_step, which fills in the earlier actions, and compares its outputs with what dtrain
// predict wrote for the same frames. A frame begins with obs/a [3].
#include "dtrain_step.h"
#include "test.h"

#include <hdf5.h>

enum { A = 3, ACTIONS = 3, LONGEST = 64 };
// libdtrain_step computes products of one row and passes states on at every position, so fp32 sums
// differ from those of dtrain predict.
static const double tolerance = 2e-5;

static hsize_t read_rows(hid_t file, const char *path, int64_t width, float *values)
{
    hid_t id = H5Dopen2(file, path, H5P_DEFAULT), space = H5Dget_space(id);
    hsize_t n = (hsize_t)H5Sget_simple_extent_npoints(space);
    CHECK(id >= 0 && n <= (hsize_t)(LONGEST * width), "%s", path);
    CHECK(H5Dread(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0, "%s", path);
    H5Sclose(space);
    H5Dclose(id);
    return n / (hsize_t)width;
}

static void fine(int code)
{
    char why[1024];
    dtrain_step_error(why, sizeof why);
    CHECK(code == DTRAIN_STEP_OK, "%s", why);
}

static void play(dtrain_step *model, const struct dtrain_step_info *info, hid_t data,
                 hid_t predictions, const char *episode)
{
    static float a[LONGEST * A], actions[LONGEST * ACTIONS], want[LONGEST * 64], got[64];
    char path[128];
    snprintf(path, sizeof path, "%s/obs/a", episode);
    hsize_t n = read_rows(data, path, A, a);
    snprintf(path, sizeof path, "%s/actions", episode);
    CHECK(read_rows(data, path, ACTIONS, actions) == n, "%s", path);
    fine(dtrain_step_reset(model, 0));
    for (hsize_t t = 0; t < n; t++) {
        float frame[64];
        for (int i = 0; i < 64; i++)
            frame[i] = i < A ? a[t * A + (hsize_t)i] : NAN;
        fine(dtrain_step_step(model, 0, frame, NULL, got));
        fine(dtrain_step_feed(model, 0, actions + t * ACTIONS));
        for (int32_t k = 0; k < info->n_outputs; k++) {
            struct dtrain_step_output output;
            fine(dtrain_step_describe_output(model, k, &output));
            snprintf(path, sizeof path, "%s/%s/logits", episode, output.name);
            CHECK(read_rows(predictions, path, output.width, want) == n, "%s", path);
            for (int i = 0; i < output.width; i++)
                CHECK_NEAR(got[output.first + i], want[t * (hsize_t)output.width + (hsize_t)i],
                           tolerance);
        }
    }
}

int main(int argc, char **argv)
{
    dtrain_step *model = NULL;
    struct dtrain_step_info info;
    if (argc < 4)
        return 2;
    fine(dtrain_step_open(argv[1], NULL, &model));
    fine(dtrain_step_describe(model, &info));
    hid_t data = H5Fopen(argv[2], H5F_ACC_RDONLY, H5P_DEFAULT),
          predictions = H5Fopen(argv[3], H5F_ACC_RDONLY, H5P_DEFAULT);
    int played = 0;
    for (int i = 0; i < 13; i++) {
        char episode[32];
        snprintf(episode, sizeof episode, "/data/demo_%d", i);
        if (H5Lexists(predictions, episode, H5P_DEFAULT) <= 0)
            continue;
        play(model, &info, data, predictions, episode);
        played++;
    }
    CHECK(played > 3, "%d episodes", played);
    H5Fclose(data);
    H5Fclose(predictions);
    dtrain_step_close(model);
    return test_end();
}
