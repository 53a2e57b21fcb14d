// The safetensors format [huggingface/safetensors]: u64 little-endian header length, a JSON header
// {"name": {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {…}}, then the data.
// Everything in a file is hostile until checked: length of the header (at most 100 MB and inside
// the file), JSON (at most 4 million values), dtypes, shapes (overflow), offsets (inside the file,
// no overlap, no hole, size = shape). Element types that dtrain does not support (BOOL, F8_E4M3, …)
// are indexed and checked like the others, so that unused tensors do no harm; reading one is an
// error.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdint.h>

enum { DT_MAX_DIMS = 8 };

struct dt_safetensor {
    char *name;            // unique, without control characters
    const char *type_name; // the dtype as the file spells it; for messages
    dt_dtype dtype;        // DT_DTYPE_COUNT: unsupported
    int n_dims;
    int64_t shape[DT_MAX_DIMS];
    int64_t count;        // elements
    int64_t begin, bytes; // offset in the file
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
// Elements [first, first + count) as stored. Thread-safe, like dt_safetensors_read_f32.
dt_status dt_safetensors_read(const struct dt_safetensors *file, const struct dt_safetensor *tensor,
                              int64_t first, int64_t count, void *out);
// Elements [first, first + count) as fp32; F32, BF16, F16 and I8 tensors only.
dt_status dt_safetensors_read_f32(const struct dt_safetensors *file,
                                  const struct dt_safetensor *tensor, int64_t first, int64_t count,
                                  float *out);

// Writing: announce the tensors (0 to 8 dimensions), then append their data in that order in pieces
// of any size. The data go straight to `path`; to make that atomic, write into a folder and rename
// it. If larger element types are announced first, every tensor is aligned to its elements in the
// file.
struct dt_safetensors_writer;
struct dt_safetensors_entry {
    const char *name;
    dt_dtype dtype;
    int n_dims;
    int64_t shape[DT_MAX_DIMS];
};
// The writer syncs after this many bytes, since one fsync of the whole file would take long. Tests
// lower it.
extern int64_t dt_safetensors_sync_bytes;
// `metadata` has n pairs: key, value, key, value … The writer hashes the file (xxh64) for the
// manifest.
dt_status dt_safetensors_create(const char *path, const struct dt_safetensors_entry *entries,
                                int n_entries, const char *const *metadata, int n_metadata,
                                struct dt_safetensors_writer **writer);
dt_status dt_safetensors_write(struct dt_safetensors_writer *writer, const void *data,
                               int64_t bytes);
// fsyncs and closes; returns size and xxh64 of the file (each may be NULL). It is an error if fewer
// or more bytes than announced were appended. Always frees the writer; on failure removes the file.
dt_status dt_safetensors_finish(struct dt_safetensors_writer *writer, int64_t *size,
                                uint64_t *hash);
// Closes and removes the file; NULL is fine.
void dt_safetensors_discard(struct dt_safetensors_writer *writer);
