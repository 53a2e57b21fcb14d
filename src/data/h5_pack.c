// Writes one shard. Tokens are collected in a buffer of whole checksum blocks, which is hashed and
// written when full.
#include "data/h5_pack.h"

#include "base/file.h"
#include "base/list.h"
#include "base/memory.h"
#include "base/round.h"
#include "data/h5_hashes.h"
#include "data/h5_starts.h"
#include "data/xxh3.h"

#include <inttypes.h>
#include <string.h>

enum {
    BUFFER_BYTES = 64 * DT_HASH_BLOCK,
    ALIGN_FROM = 65536, // datasets of at least this many bytes start at a page
    ALIGN_TO = 4096,
};

static const struct dt_h5_hash_kind *const hash_kind = &dt_h5_hash_kinds[0];

struct dt_shard_writer {
    char *path;
    hid_t file, tokens; // -1: not open
    dt_dtype type;
    int64_t count, done; // tokens of the shard; tokens appended so far
    char *buffer;        // [BUFFER_BYTES] tokens not written yet
    int64_t used;        // bytes in the buffer
    uint64_t *hashes;
    int64_t n_hashes;
    uint64_t *starts;
    int64_t n_starts;
};

static dt_status create_file(const char *path, hid_t *file)
{
    hid_t access = dt_h5_access();
    H5Pset_alignment(access, ALIGN_FROM, ALIGN_TO);
    *file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    dt_status status = *file < 0 ? dt_h5_fail(DT_MACHINE, "create", path, NULL) : DT_OK;
    H5Pclose(access);
    return status;
}

// Creates a contiguous dataset, [n] or [n, width], without writing zeros first, and without a time
// stamp, so that the same values give the same file. width 0: one dimension.
static dt_status create_array(const char *path, hid_t file, const char *name, dt_dtype type,
                              int64_t n, int64_t width, hid_t *id)
{
    const hsize_t size[] = {(hsize_t)n, (hsize_t)width};
    dt_status status = DT_OK;
    hid_t space = H5Screate_simple(width > 0 ? 2 : 1, size, NULL),
          plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(plist, false);
    *id = H5Dcreate2(file, name, dt_h5_type(type), space, H5P_DEFAULT, plist, H5P_DEFAULT);
    if (*id < 0)
        status = dt_h5_fail(DT_MACHINE, "write", path, NULL);
    H5Pclose(plist);
    H5Sclose(space);
    return status;
}

dt_status dt_shard_create(const char *path, dt_dtype type, int64_t count,
                          struct dt_shard_writer **writer)
{
    struct dt_shard_writer *w;
    int64_t n_hashes = count * dt_dtype_size(type) / DT_HASH_BLOCK + 1;
    dt_status status;
    *writer = NULL;
    DT_TRY(DT_NEW(&w, 1, "writing %s", path));
    w->type = type;
    w->count = count;
    w->file = w->tokens = -1;
    dt_h5_enter(NULL);
    DT_TRY_GOTO(status, out, dt_memory_text(&w->path, "%s", path));
    DT_TRY_GOTO(status, out, DT_NEW(&w->buffer, BUFFER_BYTES, "writing %s", path));
    DT_TRY_GOTO(status, out, DT_NEW(&w->hashes, n_hashes, "the checksums of %s", path));
    DT_TRY_GOTO(status, out, create_file(path, &w->file));
    status = create_array(path, w->file, "/tokens", type, count, 0, &w->tokens);
out:
    dt_h5_leave();
    if (status == DT_OK)
        *writer = w;
    else
        dt_shard_abandon(w);
    return status;
}

// Writes rows [first, first + n) of an array; the library converts them from `type` to the file's.
static dt_status write_slab(const char *path, hid_t array, dt_dtype type, int64_t first, int64_t n,
                            int64_t width, const void *data)
{
    const hsize_t start[] = {(hsize_t)first, 0}, size[] = {(hsize_t)n, (hsize_t)width};
    dt_status status = DT_OK;
    if (n == 0)
        return DT_OK;
    hid_t in_file = H5Dget_space(array),
          in_memory = H5Screate_simple(width > 0 ? 2 : 1, size, NULL);
    if (H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start, NULL, size, NULL) < 0 ||
        H5Dwrite(array, dt_h5_type(type), in_memory, in_file, H5P_DEFAULT, data) < 0)
        status = dt_h5_fail(DT_MACHINE, "write", path, NULL);
    H5Sclose(in_memory);
    H5Sclose(in_file);
    return status;
}

static dt_status flush(struct dt_shard_writer *writer)
{
    int64_t n = writer->used / dt_dtype_size(writer->type);
    for (int64_t at = 0; at < writer->used; at += DT_HASH_BLOCK)
        writer->hashes[writer->n_hashes++] = hash_kind->hash(
            writer->buffer + at, (size_t)dt_min_i64(writer->used - at, DT_HASH_BLOCK));
    writer->used = 0;
    dt_h5_enter(NULL);
    dt_status status = write_slab(writer->path, writer->tokens, writer->type, writer->done - n, n,
                                  0, writer->buffer);
    dt_h5_leave();
    return status;
}

dt_status dt_shard_append(struct dt_shard_writer *writer, const void *tokens, int64_t n)
{
    int64_t size = dt_dtype_size(writer->type), left = n * size;
    for (const char *from = tokens; left > 0;) {
        int64_t bytes = dt_min_i64(left, BUFFER_BYTES - writer->used);
        memcpy(writer->buffer + writer->used, from, (size_t)bytes);
        writer->used += bytes;
        writer->done += bytes / size;
        from += bytes;
        left -= bytes;
        if (writer->used == BUFFER_BYTES)
            DT_TRY(flush(writer));
    }
    return DT_OK;
}

dt_status dt_shard_start_document(struct dt_shard_writer *writer)
{
    DT_TRY(dt_list_grow(&writer->starts, writer->n_starts, sizeof *writer->starts));
    writer->starts[writer->n_starts++] = (uint64_t)writer->done;
    return DT_OK;
}

// Creates and writes a whole dataset.
static dt_status put_array(struct dt_shard_writer *writer, const char *name, const uint64_t *values,
                           int64_t n, hid_t *id)
{
    DT_TRY(create_array(writer->path, writer->file, name, DT_U64, n, 0, id));
    return write_slab(writer->path, *id, DT_U64, 0, n, 0, values);
}

static dt_status write_tail(struct dt_shard_writer *writer, bool documents)
{
    hid_t hashes, starts;
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {
        {DT_STARTS_COUNT, (uint64_t)writer->n_starts},
        {"bytes", (uint64_t)writer->count},
        {DT_STARTS_HASH, dt_xxh3(writer->starts, (size_t)writer->n_starts * sizeof(uint64_t))},
    };
    const uint64_t block = DT_HASH_BLOCK;
    DT_TRY(put_array(writer, hash_kind->dataset, writer->hashes, writer->n_hashes, &hashes));
    DT_TRY(dt_h5_put_attribute(writer->path, hashes, DT_H5_HASH_BLOCK, H5T_STD_U64LE, 0, &block));
    if (documents) {
        DT_TRY(put_array(writer, "/doc_starts", writer->starts, writer->n_starts, &starts));
        for (int i = 0; i < 3; i++)
            DT_TRY(dt_h5_put_attribute(writer->path, writer->tokens, counts[i].name, H5T_STD_U64LE,
                                       0, &counts[i].value));
    }
    hid_t file = writer->file;
    writer->file = -1;
    return dt_h5_finish(writer->path, file, DT_OK);
}

dt_status dt_shard_finish(struct dt_shard_writer *writer, bool documents)
{
    dt_status status = flush(writer);
    dt_h5_enter(NULL);
    if (status == DT_OK)
        status = write_tail(writer, documents);
    dt_h5_leave();
    if (status == DT_OK)
        status = dt_fsync_file(writer->path);
    dt_shard_abandon(writer);
    return status;
}

void dt_shard_abandon(struct dt_shard_writer *writer)
{
    if (!writer)
        return;
    dt_h5_enter(NULL);
    if (writer->file >= 0)
        H5Fclose(writer->file);
    dt_h5_leave();
    free(writer->starts);
    free(writer->hashes);
    free(writer->buffer);
    free(writer->path);
    free(writer);
}

dt_status dt_pairs_write(const char *path, dt_dtype type, int64_t rows, int64_t length,
                         dt_fill_rows fill, void *context)
{
    static const char *const names[] = {"/input_ids", "/labels"};
    int64_t each = dt_max_i64(BUFFER_BYTES / (length * (int64_t)sizeof(int32_t)), 1);
    hid_t file, arrays[2];
    int32_t *values; // input_ids, then labels
    DT_TRY(DT_NEW(&values, 2 * each * length, "rows of %s", path));
    dt_h5_enter(NULL);
    dt_status status = create_file(path, &file);
    for (int i = 0; i < 2 && status == DT_OK; i++)
        status = create_array(path, file, names[i], type, rows, length, &arrays[i]);
    dt_h5_leave();
    for (int64_t n, first = 0; first < rows && status == DT_OK; first += n) {
        n = dt_min_i64(each, rows - first);
        fill(context, first, n, values, values + each * length);
        dt_h5_enter(NULL);
        for (int i = 0; i < 2 && status == DT_OK; i++)
            status =
                write_slab(path, arrays[i], DT_I32, first, n, length, values + i * each * length);
        dt_h5_leave();
    }
    free(values);
    dt_h5_enter(NULL);
    status = dt_h5_finish(path, file, status); // also closes the datasets
    dt_h5_leave();
    return status == DT_OK ? dt_fsync_file(path) : status;
}

dt_status dt_shard_set_attributes(const char *path, const char *name,
                                  const struct dt_shard_attributes *a)
{
    dt_h5_enter(NULL);
    hid_t access = dt_h5_access(), file = H5Fopen(path, H5F_ACC_RDWR, access);
    hid_t tokens = file < 0 ? -1 : H5Dopen2(file, name, H5P_DEFAULT);
    uint64_t vocab_size = (uint64_t)a->vocab_size;
    dt_status status =
        tokens < 0 ? dt_h5_fail(DT_MACHINE, "open", path, NULL)
                   : dt_h5_put_attribute(path, tokens, "vocab_size", H5T_STD_U64LE, 0, &vocab_size);
    if (status == DT_OK && a->tokenizer != 0)
        status =
            dt_h5_put_attribute(path, tokens, "tokenizer_xxh64", H5T_STD_U64LE, 0, &a->tokenizer);
    if (status == DT_OK && a->complement)
        status = dt_h5_put_attribute(path, tokens, DT_COMPLEMENT, H5T_STD_U8LE, vocab_size,
                                     a->complement);
    H5Pclose(access);
    status = dt_h5_finish(path, file, status);
    dt_h5_leave();
    DT_TRY(status);
    return dt_fsync_file(path);
}
