// Reads safetensors files: opens one, has its header indexed by safetensors_parse.c, and reads
// elements as stored or as fp32. Any number of threads may read from one open file.
#include "base/safetensors.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/round.h"
#include "base/safetensors_format.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

enum { CHUNK = 16384 }; // elements converted at a time: 32 KiB, on the stack

static dt_status read_header(int fd, const char *path, int64_t file_size, char **header,
                             int64_t *size)
{
    uint64_t length;
    *header = NULL;
    if (file_size < DT_SAFETENSORS_PREFIX)
        return DT_FAIL(DT_USER, "the file is truncated; copy or create it again",
                       "%s has %" PRId64 " bytes, too few for a safetensors file", path, file_size);
    DT_TRY(dt_pread_all(fd, path, &length, sizeof length, 0));
    if (memcmp(&length, "version ", sizeof length) == 0) // a Git LFS pointer file
        return DT_FAIL(DT_USER, "run git lfs pull where it was cloned",
                       "%s is a Git LFS pointer, not the file itself", path);
    if (length > DT_SAFETENSORS_HEADER_MAX)
        return DT_FAIL(DT_USER, "the file is damaged or not a safetensors file",
                       "%s: a header of %" PRIu64 " bytes, at most %d are allowed", path, length,
                       DT_SAFETENSORS_HEADER_MAX);
    *size = (int64_t)length;
    if (*size > file_size - DT_SAFETENSORS_PREFIX)
        return DT_FAIL(DT_USER, "the file is truncated; copy or create it again",
                       "%s: a header of %" PRId64 " bytes, the file has %" PRId64 " bytes", path,
                       *size, file_size);
    DT_TRY(DT_NEW(header, *size + 1, "the header of %s", path));
    return dt_pread_all(fd, path, *header, *size, DT_SAFETENSORS_PREFIX);
}

dt_status dt_safetensors_open(const char *path, struct dt_safetensors **file)
{
    int fd;
    int64_t file_size, size = 0;
    char *header;
    dt_status status;
    *file = NULL;
    DT_TRY(dt_open_read(path, &fd, &file_size));
    DT_TRY_GOTO(status, out, read_header(fd, path, file_size, &header, &size));
    DT_TRY_GOTO(
        status, out,
        dt_safetensors_parse(path, header, size, file_size - size - DT_SAFETENSORS_PREFIX, file));
    (*file)->fd = fd;
out:
    free(header);
    if (status != DT_OK)
        close(fd);
    return status;
}

static dt_status check_range(const struct dt_safetensors *file, const struct dt_safetensor *tensor,
                             int64_t first, int64_t count)
{
    if (first >= 0 && count >= 0 && first <= tensor->count && count <= tensor->count - first)
        return DT_OK;
    return DT_FAIL(DT_USER, NULL,
                   "%s: tensor %s has %" PRId64 " elements, requested %" PRId64 " from %" PRId64,
                   file->path, tensor->name, tensor->count, count, first);
}

dt_status dt_safetensors_read(const struct dt_safetensors *file, const struct dt_safetensor *tensor,
                              int64_t first, int64_t count, void *out)
{
    DT_TRY(check_range(file, tensor, first, count));
    int64_t each = tensor->count > 0 ? tensor->bytes / tensor->count : 0;
    return dt_pread_all(file->fd, file->path, out, count * each, tensor->begin + first * each);
}

dt_status dt_safetensors_read_f32(const struct dt_safetensors *file,
                                  const struct dt_safetensor *tensor, int64_t first, int64_t count,
                                  float *out)
{
    uint16_t chunk[CHUNK];
    const int8_t *bytes = (const int8_t *)chunk;
    enum dt_dtype type = tensor->dtype;
    if (type == DT_F32)
        return dt_safetensors_read(file, tensor, first, count, out);
    DT_TRY(check_range(file, tensor, first, count));
    if (type != DT_BF16 && type != DT_F16 && type != DT_I8)
        return DT_FAIL(DT_USER, "convert it to F32, BF16 or F16",
                       "%s: tensor %s is %s, which cannot be read as weights", file->path,
                       tensor->name, tensor->type_name);
    for (int64_t done = 0, n; done < count; done += n) {
        n = dt_min_i64(count - done, CHUNK);
        DT_TRY(dt_safetensors_read(file, tensor, first + done, n, chunk));
        for (int64_t i = 0; i < n; i++)
            out[done + i] = type == DT_BF16  ? dt_bf16_to_f32(chunk[i])
                            : type == DT_F16 ? dt_f16_to_f32(chunk[i])
                                             : (float)bytes[i];
    }
    return DT_OK;
}
