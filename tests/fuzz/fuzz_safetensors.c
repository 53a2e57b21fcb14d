// Fuzzes the checker of safetensors headers with libFuzzer. The first byte is the size of the data,
// so that a seed that begins with a space has 32 bytes of data; the rest is the header. An accepted
// header must keep the promises of safetensors.h.
#include "base/safetensors.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int promise)
{
    if (!promise)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_safetensors *file;
    if (size == 0)
        return 0;
    int64_t header_size = (int64_t)size - 1, end = 8 + header_size;
    if (dt_safetensors_parse("fuzz", (const char *)data + 1, header_size, data[0], &file) !=
        DT_OK) {
        require(!file && dt_error_current()->message[0]);
        dt_error_clear();
        return 0;
    }
    for (int i = 0; i < file->n_tensors; i++) {
        const struct dt_safetensor *tensor = &file->tensors[i];
        int64_t count = 1;
        require(tensor->begin == end);
        end += tensor->bytes;
        require(dt_safetensors_find(file, tensor->name) == tensor);
        require(tensor->n_dims >= 0 && tensor->n_dims <= DT_MAX_DIMS);
        for (int k = 0; k < tensor->n_dims; k++)
            count *= tensor->shape[k];
        require(count == tensor->count);
        if (tensor->dtype != DT_DTYPE_COUNT)
            require(tensor->bytes == count * dt_dtype_size(tensor->dtype));
    }
    require(end == 8 + header_size + data[0]);
    for (int i = 0; i < file->n_metadata; i++)
        require(dt_safetensors_metadata(file, file->metadata[2 * i]) == file->metadata[2 * i + 1]);
    dt_safetensors_close(file);
    return 0;
}
