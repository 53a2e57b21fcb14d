// Damaged copies of a small HDF5 file, for fuzz_hdf5. A copy depends only on the file's name, a
// number and a seed.
#pragma once

#include "base/error.h"

#include <stdint.h>

// A piece of metadata with a signature and, in files of the newer format, a checksum.
struct hdf5_block {
    int64_t at;
    int64_t size; // bytes that the checksum covers; 0: no checksum
    // Where the checksum is: after these bytes, or among them, where it is computed as zeros.
    int64_t sum;
};

struct hdf5_seed {
    char name[256]; // file name without folders
    uint8_t *bytes;
    int64_t size;
    struct hdf5_block *blocks;
    int64_t n_blocks;
};

enum { MUTANT_GROWTH = 4096 }; // bytes by which a mutant may be larger than its seed

dt_status hdf5_seed_read(const char *folder, const char *name, struct hdf5_seed *seed);
void hdf5_seed_free(struct hdf5_seed *seed);
// Writes mutant `number` to `bytes`, [seed->size + MUTANT_GROWTH], and returns its size. Number 0
// is the unchanged file.
int64_t hdf5_mutate(const struct hdf5_seed *seed, uint64_t run_seed, int64_t number,
                    uint8_t *bytes);
