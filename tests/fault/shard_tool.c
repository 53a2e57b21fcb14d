// Writes shards that the fault tests need and `dtrain pack` would not write.
//   shard_tool tokens PATH N            plain u8 tokens below 128: no checksums, no attribute
//   shard_tool poke PATH INDEX VALUE    changes one token of a shard of u8, but no checksum
//   shard_tool zeros PATH N CHUNK       N * CHUNK compressed u8 tokens in chunks of CHUNK, all 0
//   shard_tool pairs PATH B T S FROM TO KIND   B * S pairs; in those with FROM <= row % S < TO the
//                                       labels are odd or ignored, or there are none
#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 128, IGNORED = -100 };

// A token that can be learned: most of the time it follows from the two tokens before it.
static int32_t next_token(int64_t i)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return i % 11 == 0 ? (int32_t)(state >> 25) : (int32_t)(i * 7 % VOCABULARY);
}

static int write_dataset(hid_t file, const char *name, hid_t type, hid_t memory, int n_dims,
                         const hsize_t *dims, const void *data)
{
    hid_t space = H5Screate_simple(n_dims, dims, NULL);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    herr_t result = H5Dwrite(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    H5Dclose(dataset);
    H5Sclose(space);
    return result < 0;
}

static int write_tokens(const char *path, int64_t n)
{
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    if (!tokens)
        return 1;
    for (int64_t i = 0; i < n; i++)
        tokens[i] = next_token(i);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hsize_t dims[] = {(hsize_t)n};
    int failed = write_dataset(file, "tokens", H5T_STD_U8LE, H5T_NATIVE_INT32, 1, dims, tokens);
    free(tokens);
    return H5Fclose(file) < 0 || failed;
}

static int write_pairs(const char *path, int64_t count, int64_t T, int64_t S, int64_t from,
                       int64_t to, const char *kind)
{
    int32_t *ids = malloc((size_t)(2 * count * S * T) * sizeof *ids), *labels = ids + count * S * T;
    bool absent = strcmp(kind, "absent") == 0, odd = strcmp(kind, "odd") == 0;
    int64_t rows = 0;
    if (!ids)
        return 1;
    for (int64_t row = 0; row < count * S; row++) {
        bool other = row % S >= from && row % S < to;
        for (int64_t t = 0; t < T; t++) {
            int32_t id = next_token(row * T + t), label = (id + 7) % VOCABULARY;
            ids[rows * T + t] = id;
            labels[rows * T + t] = !other ? label : odd ? VOCABULARY - 1 - label : IGNORED;
        }
        rows += !(other && absent);
    }
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hsize_t dims[] = {(hsize_t)rows, (hsize_t)T};
    int failed = write_dataset(file, "input_ids", H5T_STD_I32LE, H5T_NATIVE_INT32, 2, dims, ids) ||
                 write_dataset(file, "labels", H5T_STD_I32LE, H5T_NATIVE_INT32, 2, dims, labels);
    free(ids);
    return H5Fclose(file) < 0 || failed;
}

// The library compresses one chunk and writes it in all places.
static int write_zeros(const char *path, int64_t n, int64_t size)
{
    const hsize_t chunk = (hsize_t)size, dims = (hsize_t)n * chunk;
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = H5Screate_simple(1, &dims, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(plist, 1, &chunk);
    H5Pset_deflate(plist, 1);
    H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
    hid_t id = H5Dcreate2(file, "tokens", H5T_STD_U8LE, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    H5Pclose(plist);
    H5Sclose(space);
    return H5Dclose(id) < 0 || H5Fclose(file) < 0;
}

static int poke(const char *path, int64_t index, int32_t value)
{
    hsize_t start[] = {(hsize_t)index}, one[] = {1};
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t dataset = H5Dopen2(file, "tokens", H5P_DEFAULT);
    hid_t space = H5Dget_space(dataset), memory = H5Screate_simple(1, one, NULL);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, one, NULL);
    herr_t result = H5Dwrite(dataset, H5T_NATIVE_INT32, memory, space, H5P_DEFAULT, &value);
    H5Sclose(memory);
    H5Sclose(space);
    H5Dclose(dataset);
    return H5Fclose(file) < 0 || result < 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "tokens") == 0)
        return write_tokens(argv[2], atoll(argv[3]));
    if (argc == 5 && strcmp(argv[1], "poke") == 0)
        return poke(argv[2], atoll(argv[3]), atoi(argv[4]));
    if (argc == 5 && strcmp(argv[1], "zeros") == 0)
        return write_zeros(argv[2], atoll(argv[3]), atoll(argv[4]));
    if (argc == 9 && strcmp(argv[1], "pairs") == 0)
        return write_pairs(argv[2], atoll(argv[3]), atoll(argv[4]), atoll(argv[5]), atoll(argv[6]),
                           atoll(argv[7]), argv[8]);
    fprintf(stderr,
            "usage: shard_tool tokens PATH N | poke PATH INDEX VALUE | zeros PATH N CHUNK | "
            "pairs PATH B T S FROM TO KIND\n");
    return 2;
}
