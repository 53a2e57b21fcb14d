// An open HDF5 shard, and functions for all reader kinds of such shards. Kinds see arrays and
// bytes, never the library.
#pragma once

#include "data/h5_file.h"
#include "data/reader.h"

struct dt_reader {
    const struct dt_reader_kind *kind;
    struct dt_h5_file file;                        // not open for a kind with a source
    struct dt_h5_array arrays[DT_READER_DATASETS]; // the datasets of the kind, in its order
    void *own;                                     // the kind's state; freed at close
    char *scratch;
    int64_t scratch_bytes;
};

// Scratch memory of at least `bytes`, owned by the reader and valid until the next call.
dt_status dt_reader_scratch(struct dt_reader *reader, int64_t bytes, void *pointer);
// *hash = xxh64, seeded by *hash, of rows [first, first + count) of an array.
dt_status dt_reader_hash(struct dt_reader *reader, const struct dt_h5_array *array, int64_t first,
                         int64_t count, uint64_t *hash);
// Which of `count` rows a hash of at most `bytes` reads: all rows in consecutive pieces, or pieces
// evenly spread from the first row to the last.
struct dt_hash_plan {
    int64_t count, rows, n; // rows of the data; rows per piece; pieces
    bool all;
};
struct dt_hash_plan dt_hash_plan(int64_t count, int64_t row_bytes, int64_t bytes);
// The first row and the number of rows of piece i.
int64_t dt_hash_piece(const struct dt_hash_plan *plan, int64_t i, int64_t *rows);
// *hash = xxh64, seeded by *hash, of the rows of an array that a plan of `bytes` reads.
dt_status dt_reader_hash_array(struct dt_reader *reader, const struct dt_h5_array *array,
                               int64_t bytes, uint64_t *hash);
