// Shards for tests, written directly with the HDF5 library into the scratch folder.
#pragma once

#include "data/statistics.h"
#include "scratch.h"

#include <hdf5.h>
#include <stdbool.h>

// How a dataset is written; the data is what `memory` says, the file holds `disk`.
struct put {
    const char *name;
    hid_t disk, memory;
    int n_dims;
    hsize_t dims[3];
    const void *data; // NULL: nothing is written
    hsize_t chunk;    // of the first dimension; 0: contiguous
    int gzip;         // level; 0: none
    bool fletcher, compact;
};

// Creates a dataset of type `disk` and writes `data` of type `memory` unless it is NULL. Closes the
// space and the property list.
static inline void put_in(hid_t file, const char *name, hid_t disk, hid_t space, hid_t plist,
                          hid_t memory, const void *data)
{
    hid_t id = H5Dcreate2(file, name, disk, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    CHECK(id >= 0, "cannot create %s", name);
    CHECK(!data || H5Dwrite(id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0,
          "cannot write %s", name);
    H5Dclose(id);
    H5Sclose(space);
    if (plist != H5P_DEFAULT)
        H5Pclose(plist);
}

static bool time_second = false; // datasets of more than one dimension are channels x time

static inline void put(hid_t file, const struct put *what)
{
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[3] = {what->chunk, what->dims[1], what->dims[2]};
    if (time_second && what->n_dims > 1)
        chunk[0] = 1, chunk[1] = what->chunk;
    if (what->chunk)
        H5Pset_chunk(plist, what->n_dims, chunk);
    if (what->gzip)
        H5Pset_deflate(plist, (unsigned)what->gzip);
    if (what->fletcher)
        H5Pset_fletcher32(plist);
    if (what->compact)
        H5Pset_layout(plist, H5D_COMPACT);
    put_in(file, what->name, what->disk, H5Screate_simple(what->n_dims, what->dims, NULL), plist,
           what->memory, what->data);
}

static inline void put_vector(hid_t file, const char *name, hid_t type, int64_t n, const void *data)
{
    put(file, &(struct put){name, type, type, 1, {(hsize_t)n}, data, 0, 0, false, false});
}

// [rows, cols], stored as the data are.
static inline void put_matrix(hid_t file, const char *name, hid_t type, int64_t rows, int64_t cols,
                              const void *data)
{
    const struct put what = {name, type, type, 2, {(hsize_t)rows, (hsize_t)cols}, data, 0, 0, 0, 0};
    put(file, &what);
}

static inline void put_attribute(hid_t file, const char *dataset, const char *name, hid_t disk,
                                 int64_t value)
{
    hid_t id = H5Dopen2(file, dataset, H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(id, name, disk, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(attribute, H5T_NATIVE_INT64, &value) >= 0, "cannot write %s", name);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Dclose(id);
}

static inline hid_t new_file(const char *path)
{
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(file >= 0, "cannot create %s", path);
    return file;
}

// A shard of the scratch folder, to change.
static inline hid_t change(const char *name)
{
    hid_t file = H5Fopen(in_scratch("%s", name), H5F_ACC_RDWR, H5P_DEFAULT);
    CHECK(file >= 0, "cannot change %s", name);
    return file;
}

static inline void remove_name(const char *name, const char *path)
{
    hid_t file = change(name);
    CHECK(H5Ldelete(file, path, H5P_DEFAULT) >= 0, "cannot remove %s", path);
    H5Fclose(file);
}

// The same, without what may have this path.
static inline hid_t change_without(const char *name, const char *path)
{
    hid_t file = change(name);
    if (H5Lexists(file, path, H5P_DEFAULT) > 0)
        H5Ldelete(file, path, H5P_DEFAULT);
    return file;
}

// Puts a vector into a shard of the scratch folder, in the place of what has that path.
static inline void replace_vector(const char *name, const char *path, hid_t type, int64_t n,
                                  const void *data)
{
    hid_t file = change_without(name, path);
    put_vector(file, path, type, n, data);
    H5Fclose(file);
}

// A file with one vector.
static inline void put_alone(const char *path, const char *name, hid_t type, int64_t n,
                             const void *data)
{
    hid_t file = new_file(path);
    put_vector(file, name, type, n, data);
    H5Fclose(file);
}

// The shards that a pattern names now; they are there until the next call.
static inline struct dt_dataset *scan(const char *pattern, const struct dt_scan_rules *rules)
{
    static struct dt_dataset *scanned;
    dt_dataset_free(scanned);
    CHECK_OK(dt_dataset_scan(pattern, rules, &scanned));
    return scanned;
}

// Computes the statistics of all frames and returns how many columns are constant. `note` receives
// how much was read.
static inline int64_t statistics_of(const struct dt_dataset *dataset, void (*note)(void *, double),
                                    void *context, float *mean, float *deviation)
{
    struct dt_shard_cache *shards;
    double *blocks = calloc((size_t)dt_statistics_size(dataset, DT_NUMBERS_FRAMES), sizeof *blocks);
    CHECK_OK(dt_shard_cache_open(dataset, &shards));
    CHECK_OK(dt_statistics_read(shards, DT_NUMBERS_FRAMES, 0, 1, blocks, note, context));
    dt_statistics_merge(dataset, DT_NUMBERS_FRAMES, blocks);
    int64_t constant = dt_statistics_finish(dataset, DT_NUMBERS_FRAMES, blocks, mean, deviation);
    dt_shard_cache_close(shards);
    free(blocks);
    return constant;
}

// Where the bytes of a contiguous dataset start in the file.
static inline int64_t offset_of(const char *path, const char *dataset)
{
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    hid_t id = H5Dopen2(file, dataset, H5P_DEFAULT);
    int64_t offset = (int64_t)H5Dget_offset(id);
    H5Dclose(id);
    H5Fclose(file);
    return offset;
}
