// The safetensors format [huggingface/safetensors]: u64 little-endian header length, a JSON header
// {"name": {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {…}}, then the data.
// Everything in a file is hostile until checked: length of the header (at most 100 MB and inside
// the file), JSON (at most 4 million values), dtypes, shapes (overflow), offsets (inside the file,
// no overlap, no hole, size = shape). Element types that the format knows and dtrain does not
// (BOOL, F8_E4M3, …) are indexed and checked like the others, so that a tensor which nobody
// needs does no harm; reading one is an error.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdint.h>

enum { DT_MAX_DIMS = 8 };

struct dt_safetensor {
    char *name;            // unique, without control characters
    const char *type_name; // the dtype as the file spells it; for messages
    dt_dtype dtype;        // DT_DTYPE_COUNT: one that dtrain does not know
    int n_dims;
    int64_t shape[DT_MAX_DIMS];
    int64_t count;        // elements
    int64_t begin, bytes; // in the file, from its start
};

struct dt_safetensors {
    char *path;
    int fd;
    int n_tensors;
    struct dt_safetensor *tensors; // sorted by begin
    int n_metadata;
    char **metadata; // key, value, key, value …, sorted by key
};

// Checks and indexes; reads no tensor data. Errors are DT_USER and name path, tensor and value.
dt_status dt_safetensors_open(const char *path, struct dt_safetensors **file);
// The checker itself, for the fuzz target: a header of `size` bytes over `data_bytes` bytes of
// data.
dt_status dt_safetensors_parse(const char *path, const char *header, int64_t size,
                               int64_t data_bytes, struct dt_safetensors **file);
void dt_safetensors_close(struct dt_safetensors *file); // NULL is fine
const struct dt_safetensor *dt_safetensors_find(const struct dt_safetensors *file,
                                                const char *name);
const char *dt_safetensors_metadata(const struct dt_safetensors *file, const char *key); // or NULL
// Elements [first, first + count) as they are stored. Any number of threads, as the next one.
dt_status dt_safetensors_read(const struct dt_safetensors *file, const struct dt_safetensor *tensor,
                              int64_t first, int64_t count, void *out);
// Elements [first, first + count) as fp32; F32, BF16, F16 and I8 tensors only.
dt_status dt_safetensors_read_f32(const struct dt_safetensors *file,
                                  const struct dt_safetensor *tensor, int64_t first, int64_t count,
                                  float *out);

// Writing: the tensors are announced, then their data follow in that order in pieces of any size.
// Straight into `path` (a folder that is renamed makes it atomic); 0 to 8 dimensions. Announce
// larger element types first, and every tensor is aligned to its elements in the file.
struct dt_safetensors_writer;
struct dt_safetensors_entry {
    const char *name;
    dt_dtype dtype;
    int n_dims;
    int64_t shape[DT_MAX_DIMS];
};
// Synced whenever so many bytes were written: one fsync of all would be long. Tests lower it.
extern int64_t dt_safetensors_sync_bytes;
// `metadata`: n pairs: key, value, key, value … Hashes what it writes (xxh64) for the manifest.
dt_status dt_safetensors_create(const char *path, const struct dt_safetensors_entry *entries,
                                int n_entries, const char *const *metadata, int n_metadata,
                                struct dt_safetensors_writer **writer);
dt_status dt_safetensors_write(struct dt_safetensors_writer *writer, const void *data,
                               int64_t bytes);
// fsyncs and closes; gives size and xxh64 of the file (each may be NULL). Fewer or more bytes than
// announced is an error. The writer is freed, whatever is returned, and with an error the file too.
dt_status dt_safetensors_finish(struct dt_safetensors_writer *writer, int64_t *size,
                                uint64_t *hash);
// Closes and removes the file; NULL is fine.
void dt_safetensors_discard(struct dt_safetensors_writer *writer);
