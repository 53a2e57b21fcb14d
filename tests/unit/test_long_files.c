// Tests files longer than what is read, summed or hashed at a time: episodes that end on both sides
// of a border, statistics of blocks that span two files, and a chunk for which the checksum is
// folded several times.
#include "data/pack.h"
#include "data/statistics.h"
#include "episode_files.h"

enum { ROWS = 2 * 4096 + 11 }; // D4RL: the end marks of 4096 rows are read at a time
static const int64_t last_rows[] = {0, 4094, 4095, 4096, 4097, 8190, 8192, ROWS - 1};
enum { N_EPISODES = sizeof last_rows / sizeof *last_rows };

// Writes rows of one number, with equal actions. `late` may be NULL.
static void write_d4rl(const char *path, int64_t n, const float *frames, const uint8_t *ends,
                       const uint8_t *late)
{
    hid_t file = new_file(path), bytes = H5T_STD_U8LE;
    put_matrix(file, "observations", H5T_IEEE_F32LE, n, 1, frames);
    put_matrix(file, "actions", H5T_IEEE_F32LE, n, 1, frames);
    put_vector(file, "terminals", bytes, n, ends);
    if (late)
        put_vector(file, "timeouts", bytes, n, late);
    H5Fclose(file);
}

static struct dt_dataset *scan_fives(void)
{
    struct dt_scan_rules rules = {.seq_len = 5, .stride = 5, .n_targets = 1};
    rules.target[0] = (struct dt_target){"aim", 1, 0};
    return scan(in_scratch("*.h5"), &rules);
}

// Windows have five rows, and the last one of an episode may have fewer.
static void test_ends(void)
{
    static float frames[ROWS];
    static uint8_t ends[2][ROWS];
    int64_t windows = 0;
    for (int64_t i = 0; i < ROWS; i++)
        frames[i] = (float)(i % 1000);
    for (int i = 0; i < N_EPISODES; i++) // every third end is a time-out, the others are terminals
        ends[i % 3 == 1][last_rows[i]] = 1;
    make_scratch();
    write_d4rl(in_scratch("a.h5"), ROWS, frames, ends[0], ends[1]);
    struct dt_dataset *dataset = scan_fives();
    for (int i = 0; i < N_EPISODES; i++)
        windows += (last_rows[i] - (i > 0 ? last_rows[i - 1] : -1) + 4) / 5;
    CHECK_INT(dataset->tokens, ROWS);
    CHECK_INT(dataset->episodes, N_EPISODES);
    CHECK_INT(dataset->windows, windows);
    remove_scratch();
}

// The native layout: 1024 starts are read at a time. Episodes have one to three rows.
static void test_starts(void)
{
    enum { N = 2 * 1024 + 3 };
    static float frames[3 * N];
    static uint64_t starts[N];
    int64_t rows = 0;
    for (int64_t i = 0; i < N; i++) {
        starts[i] = (uint64_t)rows;
        rows += 1 + i % 3;
    }
    make_scratch();
    hid_t file = new_file(in_scratch("a.h5")),
          group = H5Gcreate2(file, "targets", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    put_matrix(file, "frames", H5T_IEEE_F32LE, rows, 1, frames);
    put_matrix(group, "aim", H5T_IEEE_F32LE, rows, 1, frames);
    put_vector(file, "episode_starts", H5T_STD_U64LE, N, starts);
    H5Gclose(group);
    H5Fclose(file);
    struct dt_dataset *dataset = scan_fives();
    CHECK_INT(dataset->tokens, rows);
    CHECK_INT(dataset->episodes, N);
    CHECK_INT(dataset->windows, N);
    remove_scratch();
}

// Blocks have one frame or two, so that some span two files.
static void test_statistics(void)
{
    enum { FILES = 7, N = 71 };
    double sum = 0, squares = 0;
    float mean, deviation;
    make_scratch();
    for (int i = 0; i < FILES; i++) {
        float frames[N];
        uint8_t ends[N] = {0};
        for (int t = 0; t < N; t++) {
            frames[t] = (float)(i * i + t % 5);
            sum += (double)frames[t];
            squares += (double)frames[t] * (double)frames[t];
        }
        write_d4rl(in_scratch("%d.h5", i), N, frames, ends, NULL);
    }
    struct dt_dataset *dataset = scan_fives();
    CHECK(dt_statistics_size(dataset, DT_NUMBERS_FRAMES) < 3 * FILES * N, "a block has one frame");
    statistics_of(dataset, NULL, NULL, &mean, &deviation);
    CHECK_NEAR(mean, sum / (FILES * N), 1e-6);
    CHECK_NEAR(deviation, sqrt(squares / (FILES * N) - sum / (FILES * N) * sum / (FILES * N)),
               1e-6);
    remove_scratch();
}

// HDF5 wrote the checksum of a chunk of more than 2^20 words and one odd byte.
static void test_checksum(void)
{
    const hsize_t size = (1 << 21) + 4097;
    uint8_t *tokens = malloc(size);
    struct dt_shard shard;
    for (hsize_t i = 0; i < size; i++)
        tokens[i] = (uint8_t)(255 - i % 7);
    make_scratch();
    hid_t file = new_file(in_scratch("a.h5"));
    put(file, &(struct put){.name = "tokens",
                            .disk = H5T_STD_U8LE,
                            .memory = H5T_STD_U8LE,
                            .n_dims = 1,
                            .dims = {size},
                            .data = tokens,
                            .chunk = size,
                            .fletcher = true});
    H5Fclose(file);
    CHECK_OK(dt_verify_shard(in_scratch("a.h5"), NULL, false, &shard));
    remove_scratch();
    free(tokens);
}

// 2^22 bytes of a shard are verified at a time. The last token is outside the vocabulary.
static void test_last_piece(void)
{
    enum { N = (1 << 22) + 5 };
    uint8_t *tokens = calloc(N, 1);
    struct dt_shard shard;
    tokens[N - 1] = 100;
    make_scratch();
    hid_t file = new_file(in_scratch("a.h5"));
    put_vector(file, "tokens", H5T_STD_U8LE, N, tokens);
    put_attribute(file, "tokens", "vocab_size", H5T_STD_I64LE, 100);
    H5Fclose(file);
    CHECK_FAILS(dt_verify_shard(in_scratch("a.h5"), NULL, false, &shard), DT_USER,
                "/tokens at offset 4194308 is 100");
    remove_scratch();
    free(tokens);
}

int main(void)
{
    RUN(test_last_piece, test_ends, test_starts, test_statistics, test_checksum);
    return test_end();
}
