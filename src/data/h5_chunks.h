// Reads the filtered chunks of one dataset: the library returns raw bytes, and dtrain applies the
// filters. HDF5 1.10.8 assumes that a chunk decodes to its full size and copies that many bytes
// from the filters' buffer, so a damaged chunk makes it read beyond the heap.
#pragma once

#include "data/dataset.h"
#include "data/h5_file.h"

#include <stdatomic.h>

// Bytes of decoded rows that all datasets of this process may still cache beyond each dataset's
// minimum. Tests lower it.
extern _Atomic int64_t dt_h5_chunks_room;

// Opens the chunks of a dataset by its creation properties. Supported filters: deflate (gzip), lzf,
// shuffle, fletcher32; any other is DT_USER.
dt_status dt_h5_chunks_open(const struct dt_h5_array *array, hid_t plist,
                            struct dt_h5_chunks **chunks);
// Adds the decoded sizes of the array to the shard, if the shard's windows read it.
void dt_h5_chunks_note(const struct dt_h5_array *array, struct dt_shard *shard);
void dt_h5_chunks_close(struct dt_h5_chunks *chunks); // NULL is fine
// Reads rows [first, first + count), in the stored type. DT_USER names the
// file and the chunk that does not decode to exactly its size. Holds the library's lock only to
// read raw bytes.
dt_status dt_h5_chunks_read(struct dt_h5_chunks *chunks, const struct dt_h5_array *array,
                            int64_t first, int64_t count, void *data);
