// What a reader kind of HDF5 shards works with. Kinds see arrays and bytes, never the library.
#pragma once

#include "data/h5_file.h"
#include "data/reader.h"

struct dt_reader {
    const struct dt_reader_kind *kind;
    struct dt_h5_file file;                        // not open for a kind with a source
    struct dt_h5_array arrays[DT_READER_DATASETS]; // the datasets of the kind, in its order
    void *own;                                     // the kind's; freed when the reader is closed
    void *scratch;
    int64_t scratch_bytes;
};

// Memory of the reader for at least `bytes`, until the next call.
dt_status dt_reader_scratch(struct dt_reader *reader, int64_t bytes, void *pointer);
// xxh64 of rows [first, first + count) of an array, for fingerprints.
dt_status dt_reader_hash(struct dt_reader *reader, const struct dt_h5_array *array, int64_t first,
                         int64_t count, uint64_t *hash);
