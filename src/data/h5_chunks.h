// Filtered chunks of one dataset: the library gives their raw bytes, the filters are undone here.
// HDF5 1.10.8 trusts a chunk to decode to its full size and copies that much out of whatever buffer
// the filters returned, so a damaged chunk makes it read past the end of the heap.
#pragma once

#include "data/h5_file.h"

// From the creation properties of a chunked dataset of a type that dtrain reads. Supported filters:
// deflate (gzip), shuffle, fletcher32; any other is DT_USER.
dt_status dt_h5_chunks_open(const struct dt_h5_array *array, hid_t plist,
                            struct dt_h5_chunks **chunks);
void dt_h5_chunks_close(struct dt_h5_chunks *chunks); // NULL is fine
// Rows [first, first + count) of the first dimension, in the stored type. DT_USER names the file
// and the chunk that does not decode to exactly its size. Uses the library's lock for raw bytes
// only.
dt_status dt_h5_chunks_read(struct dt_h5_chunks *chunks, const struct dt_h5_array *array,
                            int64_t first, int64_t count, void *data);
