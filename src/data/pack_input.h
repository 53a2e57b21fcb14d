// Finds the files that dt_pack reads, in order, and decides which of their bytes are for training.
#pragma once

#include "data/pack.h"

struct dt_pack_file {
    char *path;
    int64_t bytes;       // > 0
    int64_t train_bytes; // the first ones; the others are for validation
};

struct dt_pack_files {
    struct dt_pack_file *at;
    int64_t n;
    int64_t skipped; // binary or unreadable, in folders
};

// Every regular file that is not empty among config->inputs, in their order; files of folders in
// bytewise order of names, without those in config->output.
dt_status dt_pack_find(const struct dt_pack_config *config, struct dt_pack_files *files);
void dt_pack_files_free(struct dt_pack_files *files);
// Divides by file: round(fraction * n) of n >= 2 files, chosen at random, are for validation, at
// least one on each side. Files for training keep their order, those for validation get the random
// order in which they were drawn: the first ones, which short evaluations read, are then like the
// rest.
dt_status dt_pack_split(struct dt_pack_files *files, double fraction, uint64_t seed);
