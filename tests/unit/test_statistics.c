// Tests mean and deviation of columns of any magnitude. What varies is normalised, however small
// its unit. What is constant, apart from rounding, is never magnified.
#include "data/statistics.h"

#include "base/log.h"
#include "shards.h"

#include <float.h>

enum { ROWS = 3001, VARYING = 6 };

// Returns a number in [-1, 1] without a pattern.
static double noise(int64_t i)
{
    return (double)((uint64_t)i * UINT64_C(0x9E3779B97F4A7C15) >> 40) / (1 << 23) - 1;
}

// Returns x, and in every third row the float below it.
static double almost(float x, int64_t row)
{
    return row % 3 ? x : nextafterf(x, 0);
}

// Columns that vary, followed by constant ones.
enum { F = 12 };
static const char *const names[F] = {"scale 1",
                                     "scale 1e-21",
                                     "scale 1e-30",
                                     "scale 1e21",
                                     "1e6 and noise of 1",
                                     "1 in one row",
                                     "constant 0",
                                     "constant 0.1",
                                     "constant 1e-21",
                                     "0.1, rounded in two ways",
                                     "1e21, rounded in two ways",
                                     "subnormal numbers"};
static double value(int64_t row, int64_t column)
{
    double x = noise(row * F + column);
    const double values[F] = {
        x,   1e-21 * x, 1e-30 * x,         1e21 * x,           1e6 + x,  row == 1234, 0,
        0.1, 1e-21,     almost(0.1f, row), almost(1e21f, row), 1e-40 * x};
    return values[column];
}

static void write_frames(hid_t type)
{
    static double frames[ROWS * F], targets[ROWS];
    for (int64_t i = 0; i < ROWS * F; i++)
        frames[i] = value(i / F, i % F);
    hid_t file = new_file(in_scratch("scales.h5"));
    put(file, &(struct put){.name = "frames",
                            .disk = type,
                            .memory = H5T_NATIVE_DOUBLE,
                            .n_dims = 2,
                            .dims = {ROWS, F},
                            .data = frames});
    put_vector(file, "actions", H5T_IEEE_F64LE, ROWS, targets);
    H5Fclose(file);
}

static int64_t read_statistics(const char *name, void (*note)(void *, double), double *share,
                               float *mean, float *deviation)
{
    struct dt_scan_rules rules = {.seq_len = 16, .inputs = "frames", .targets = "actions"};
    return statistics_of(scan(in_scratch("%s", name), &rules), note, share, mean, deviation);
}

static void test_scales(hid_t type)
{
    float mean[F], deviation[F];
    write_frames(type);
    CHECK_INT(read_statistics("scales.h5", NULL, NULL, mean, deviation), F - VARYING);
    for (int64_t c = 0; c < F; c++) {
        double sum = 0, squares = 0, farthest = 0;
        for (int64_t row = 0; row < ROWS; row++) { // in fp32, as in training
            float x = ((float)value(row, c) - mean[c]) / deviation[c];
            sum += (double)x;
            squares += (double)x * (double)x;
            farthest = fmax(farthest, fabs((double)x));
        }
        if (c < VARYING) {
            // A mean near 1e6 is rounded by up to 1/32, which is a twentieth of the column's
            // deviation.
            CHECK(fabs(sum / ROWS) < 0.06, "%s: mean %g", names[c], sum / ROWS);
            CHECK(fabs(sqrt(squares / ROWS) - 1) < 0.01, "%s: deviation %g", names[c],
                  sqrt(squares / ROWS));
        } else {
            CHECK(farthest < 1e-6, "%s: %g is left of a constant", names[c], farthest);
            CHECK(deviation[c] == (c == 10 ? 1e21f : 1), "%s is divided by %g", names[c],
                  (double)deviation[c]);
        }
    }
}

// The share that was read never decreases and ends at 1.
static void note_share(void *context, double share)
{
    double *last = context;
    CHECK(share >= *last && share <= 1, "%g follows %g", share, *last);
    *last = share;
}

// Frames are so wide that each block of them is read in several pieces.
static void test_pieces(void)
{
    enum { WIDTH = 1 << 16, FRAMES = 300 };
    static uint8_t frames[FRAMES][WIDTH];
    static const double targets[FRAMES] = {0};
    static float mean[WIDTH], deviation[WIDTH];
    double share = 0;
    for (int64_t i = 0; i < FRAMES; i++)
        for (int64_t c = 0; c < WIDTH; c++)
            frames[i][c] = (uint8_t)((i * 7 + c * 13) % 251);
    hid_t file = new_file(in_scratch("wide.h5"));
    put_matrix(file, "frames", H5T_STD_U8LE, FRAMES, WIDTH, frames);
    put_vector(file, "actions", H5T_IEEE_F64LE, FRAMES, targets);
    H5Fclose(file);
    CHECK_INT(read_statistics("wide.h5", note_share, &share, mean, deviation), 0);
    CHECK(share == 1, "%g of the frames were read", share);
    for (int64_t c = 0; c < WIDTH; c += 1021) {
        double sum = 0;
        for (int64_t i = 0; i < FRAMES; i++)
            sum += frames[i][c];
        CHECK(fabs((double)mean[c] - sum / FRAMES) < 1e-4, "column %lld: mean %g, not %g",
              (long long)c, (double)mean[c], sum / FRAMES);
    }
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    dt_log_quiet(true);
    make_scratch();
    test_scales(H5T_IEEE_F32LE);
    test_scales(H5T_IEEE_F64LE);
    test_pieces();
    remove_scratch();
    return test_end();
}
