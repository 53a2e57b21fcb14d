// Reads datasets that are stored in filtered chunks. A chunk is read as stored, decoded between two
// buffers of limited size, and cached as part of a band: the chunks that are side by side at the
// same steps in time. Windows come from all over a dataset, so bands stay decoded while there is
// room: a small dataset is decoded only once.
#include "data/h5_chunks.h"

#include "base/list.h"
#include "base/memory.h"
#include "base/round.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

enum {
    BANDS = 2,          // always kept, so that a read in pieces decodes a chunk once
    MOST_BANDS = 4096,  // limited by linear search
    CHECKSUM_BYTES = 4, // of fletcher32, after the data
    FILTER_LZF = 32000, // as registered with The HDF Group
};
static const char damaged[] = "the shard is damaged: copy or create it again";

struct filter {
    H5Z_filter_t id;
    unsigned element; // bytes per element, for shuffle
};

struct band {
    int64_t number; // -1: none
    int64_t used;   // last use
    char *rows;
};

struct dt_h5_chunks {
    struct filter filters[H5Z_MAX_NFILTERS]; // in the order of writing
    int n_filters;
    bool plain_edges; // chunks beyond the end of the dataset are stored without filters
    int n_dims;
    int64_t shape[H5S_MAX_RANK]; // of the dataset, in elements
    int64_t chunk[H5S_MAX_RANK]; // of a chunk, in elements
    int axis;                    // the dimension of time, which rows follow
    int64_t columns;             // chunks side by side, with the same rows
    bool whole_rows;             // … one chunk, which ends where its rows end
    int64_t row;                 // elements per row of the dataset
    int64_t band_step[H5S_MAX_RANK], chunk_step[H5S_MAX_RANK]; // elements from an index to the next
    int64_t size;                                              // bytes per element
    size_t chunk_bytes;                                        // decoded
    size_t room;              // bytes of a buffer, including growth by filters
    unsigned char *from, *to; // [room]
    size_t used;              // bytes in `from`
    struct band *bands;       // [n_bands]
    int64_t n_bands;
    int64_t clock;
};

_Atomic int64_t dt_h5_chunks_room = DT_KEPT_CHUNK_BYTES;

static dt_status read_filter(const struct dt_h5_array *array, hid_t plist, int i,
                             struct filter *filter)
{
    unsigned flags, config, values[8] = {0};
    size_t n_values = sizeof values / sizeof *values;
    char name[64] = "";
    filter->id =
        H5Pget_filter2(plist, (unsigned)i, &flags, &n_values, values, sizeof name, name, &config);
    filter->element = n_values > 0 ? values[0] : 0;
    if (filter->id < 0)
        return dt_h5_fail(DT_USER, "read the filters in", array->file->path, NULL);
    if (filter->id == H5Z_FILTER_SHUFFLE && filter->element == 0)
        return DT_FAIL(DT_USER, damaged, "%s: the shuffle filter of %s has no element size",
                       array->file->path, array->name);
    if (filter->id == H5Z_FILTER_DEFLATE || filter->id == H5Z_FILTER_SHUFFLE ||
        filter->id == H5Z_FILTER_FLETCHER32 || filter->id == FILTER_LZF)
        return DT_OK;
    return DT_H5_REJECT(array,
                        "store the shard without filters (h5repack -f NONE OLD NEW), or with gzip, "
                        "lzf, shuffle and fletcher32 alone",
                        "is stored with filter %d (%s), which dtrain does not read",
                        (int)filter->id, name[0] ? name : "no name");
}

static dt_status read_shape(struct dt_h5_chunks *chunks, const struct dt_h5_array *array,
                            hid_t plist)
{
    hsize_t chunk[H5S_MAX_RANK], shape[H5S_MAX_RANK], elements = 1;
    unsigned options = 0;
    hid_t space = H5Dget_space(array->id);
    int n = H5Sget_simple_extent_dims(space, shape, NULL);
    H5Sclose(space);
    if (n != array->n_dims || H5Pget_chunk(plist, H5S_MAX_RANK, chunk) != n ||
        H5Pget_chunk_opts(plist, &options) < 0)
        return dt_h5_fail(DT_USER, "read the chunks' shape in", array->file->path, NULL);
    chunks->n_dims = n;
    chunks->axis = array->axis;
    chunks->plain_edges = (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0;
    chunks->size = dt_h5_element(array);
    chunks->row = array->shape[1];
    chunks->columns = 1;
    chunks->whole_rows = true;
    for (int i = 0; i < n; i++) {
        if (chunk[i] < 1 || chunk[i] > UINT32_MAX ||
            chunk[i] > UINT32_MAX / (hsize_t)chunks->size / elements)
            return DT_FAIL(DT_USER, damaged, "%s: the chunks of %s are impossibly large",
                           array->file->path, array->name);
        elements *= chunk[i];
        chunks->shape[i] = (int64_t)shape[i];
        chunks->chunk[i] = (int64_t)chunk[i];
        if (i != array->axis)
            chunks->columns *= dt_ceil_div(chunks->shape[i], chunks->chunk[i]);
        chunks->whole_rows &= i == 0 ? array->axis == 0 : chunks->shape[i] == chunks->chunk[i];
    }
    int64_t band_step = 1, chunk_step = 1;
    for (int i = n - 1; i >= 0; chunk_step *= chunks->chunk[i--]) {
        chunks->chunk_step[i] = chunk_step;
        chunks->band_step[i] = i == array->axis ? chunks->row : band_step;
        band_step *= i == array->axis ? 1 : chunks->shape[i];
    }
    chunks->chunk_bytes = (size_t)elements * (size_t)chunks->size;
    chunks->room = chunks->chunk_bytes + chunks->chunk_bytes / 16 + 1024;
    return DT_OK;
}

dt_status dt_h5_chunks_open(const struct dt_h5_array *array, hid_t plist,
                            struct dt_h5_chunks **chunks)
{
    DT_TRY(DT_NEW(chunks, 1, "the chunks of %s", array->file->path));
    struct dt_h5_chunks *c = *chunks;
    c->n_filters = H5Pget_nfilters(plist);
    if (c->n_filters < 0 || c->n_filters > H5Z_MAX_NFILTERS)
        return dt_h5_fail(DT_USER, "read the filters in", array->file->path, damaged);
    for (int i = 0; i < c->n_filters; i++)
        DT_TRY(read_filter(array, plist, i, &c->filters[i]));
    return read_shape(c, array, plist);
}

static int64_t band_bytes(const struct dt_h5_chunks *chunks)
{
    int axis = chunks->axis;
    return dt_min_i64(chunks->chunk[axis], chunks->shape[axis]) * chunks->row * chunks->size;
}

void dt_h5_chunks_note(const struct dt_h5_array *array, struct dt_shard *shard)
{
    if (!array->chunks)
        return;
    int64_t bytes = band_bytes(array->chunks);
    shard->chunk_bytes = dt_max_i64(shard->chunk_bytes, bytes);
    shard->compressed_bytes += array->shape[0] * array->chunks->row * array->chunks->size;
}

void dt_h5_chunks_close(struct dt_h5_chunks *chunks)
{
    if (!chunks)
        return;
    for (int64_t i = 0; i < chunks->n_bands; i++)
        free(chunks->bands[i].rows);
    if (chunks->n_bands > BANDS)
        dt_h5_chunks_room += (chunks->n_bands - BANDS) * band_bytes(chunks);
    free(chunks->bands);
    free(chunks->from);
    free(chunks->to);
    free(chunks);
}

// The chunk being read, for messages.
struct place {
    const struct dt_h5_array *array;
    int64_t number; // in C order
    hsize_t offset[H5S_MAX_RANK];
};

__attribute__((format(printf, 2, 3))) static dt_status fail_chunk(const struct place *place,
                                                                  const char *format, ...)
{
    char what[96];
    DT_PRINT_ARGUMENTS(what, sizeof what, format);
    return DT_FAIL(DT_USER, damaged, "%s: chunk %" PRId64 " of %s %s", place->array->file->path,
                   place->number, place->array->name, what);
}

static void swap_buffers(struct dt_h5_chunks *chunks, size_t used)
{
    unsigned char *from = chunks->from;
    chunks->from = chunks->to;
    chunks->to = from;
    chunks->used = used;
}

static dt_status undo_deflate(struct dt_h5_chunks *chunks, const struct place *place)
{
    uLongf bytes = chunks->room;
    int result = uncompress(chunks->to, &bytes, chunks->from, chunks->used);
    if (result == Z_MEM_ERROR)
        return DT_FAIL(DT_MACHINE, NULL, "no memory to inflate %s", place->array->file->path);
    if (result == Z_BUF_ERROR)
        return fail_chunk(place, "decodes to more than %zu bytes", chunks->chunk_bytes);
    if (result != Z_OK)
        return fail_chunk(place, "is not a valid deflate stream");
    swap_buffers(chunks, bytes);
    return DT_OK;
}

// LibLZF's format, as written by h5py: a byte below 32 precedes that many literals plus one; other
// bytes start a copy of decoded data: 3 bits of length (7: more in the next byte), 13 bits of
// distance.
static dt_status undo_lzf(struct dt_h5_chunks *chunks, const struct place *place)
{
    const unsigned char *from = chunks->from, *end = from + chunks->used;
    unsigned char *to = chunks->to, *room_end = to + chunks->room;
    while (from < end) {
        size_t n = *from++;
        const unsigned char *source = from;
        if (n < 32) {
            n++;
            from += n;
        } else {
            size_t distance = (n & 31) << 8, length = n >> 5;
            bool whole = end - from >= 1 + (length == 7);
            if (whole && length == 7)
                length += *from++;
            distance += whole ? *from++ + 1u : 0;
            source = whole && distance <= (size_t)(to - chunks->to) ? to - distance : NULL;
            n = length + 2;
        }
        if (!source || from > end || n > (size_t)(room_end - to))
            return fail_chunk(place, "is not a valid lzf stream");
        while (n-- > 0) // a copy may overlap its source
            *to++ = *source++;
    }
    swap_buffers(chunks, (size_t)(to - chunks->to));
    return DT_OK;
}

// Stored order: byte j of all elements together, and at the end the bytes of an incomplete element.
static void undo_shuffle(struct dt_h5_chunks *chunks, size_t element)
{
    size_t n = chunks->used / element, whole = n * element;
    const unsigned char *from = chunks->from;
    unsigned char *restrict to = chunks->to;
    for (size_t j = 0; j < element && n > 0; j++)
        for (size_t i = 0; i < n; i++)
            to[i * element + j] = from[j * n + i];
    memcpy(to + whole, from + whole, chunks->used - whole);
    swap_buffers(chunks, chunks->used);
}

// Folds a sum of 16-bit words like HDF5: 1 to 65535, or 0 if all words are zero.
static uint32_t fold(uint64_t sum)
{
    return sum == 0 ? 0 : (uint32_t)((sum - 1) % 65535 + 1);
}

// Fletcher's checksum over big-endian 16-bit words [HDF5 file format specification, III.A.9; J. G.
// Fletcher 1982]; a last odd byte is a word's high one.
static uint32_t fletcher32(const unsigned char *data, size_t bytes)
{
    enum { WORDS = 1 << 20 }; // between two folds: sums stay below 2^57
    uint64_t sum = 0, sums = 0;
    for (size_t at = 0; at < bytes;) {
        size_t left = (bytes - at) / 2, n = left < WORDS ? left : WORDS;
        for (size_t end = at + 2 * n; at < end; at += 2) {
            sum += (uint64_t)data[at] << 8 | data[at + 1];
            sums += sum;
        }
        if (bytes - at == 1) {
            sum += (uint64_t)data[at++] << 8;
            sums += sum;
        }
        sum = fold(sum);
        sums = fold(sums);
    }
    return (uint32_t)sums << 16 | (uint32_t)sum;
}

static dt_status undo_fletcher32(struct dt_h5_chunks *chunks, const struct place *place)
{
    uint32_t stored;
    if (chunks->used < CHECKSUM_BYTES)
        return fail_chunk(place, "is shorter than its fletcher32 checksum");
    chunks->used -= CHECKSUM_BYTES;
    memcpy(&stored, chunks->from + chunks->used, sizeof stored);
    if (stored != fletcher32(chunks->from, chunks->used))
        return fail_chunk(place, "does not match its fletcher32 checksum");
    return DT_OK;
}

// Decodes the chunk's elements into `from`: chunk_bytes bytes, or an error.
static dt_status decode(struct dt_h5_chunks *chunks, const struct place *place)
{
    hid_t id = place->array->id;
    const char *path = place->array->file->path;
    uint32_t skipped = 0; // a bit per filter that was not applied
    hsize_t bytes = 0;    // as stored
    dt_status status = DT_OK;
    dt_h5_enter(path);
    if (H5Dget_chunk_storage_size(id, place->offset, &bytes) < 0)
        status = dt_h5_fail(DT_USER, "read a chunk of", path, damaged);
    else if (bytes == 0)
        status = fail_chunk(place, "was never written");
    else if (bytes > chunks->room)
        status = fail_chunk(place, "is stored in more bytes than it can decode to");
    else if (H5Dread_chunk(id, H5P_DEFAULT, place->offset, &skipped, chunks->from) < 0)
        status = dt_h5_fail(DT_USER, "read a chunk of", path, damaged);
    dt_h5_leave();
    DT_TRY(status);
    chunks->used = (size_t)bytes;
    bool filtered = true;
    for (int i = 0; chunks->plain_edges && i < chunks->n_dims; i++)
        filtered &= (int64_t)place->offset[i] + chunks->chunk[i] <= chunks->shape[i];
    for (int i = chunks->n_filters - 1; filtered && i >= 0; i--) {
        const struct filter *filter = &chunks->filters[i];
        if (skipped >> i & 1)
            continue;
        if (filter->id == H5Z_FILTER_SHUFFLE)
            undo_shuffle(chunks, filter->element);
        else
            DT_TRY(filter->id == H5Z_FILTER_DEFLATE ? undo_deflate(chunks, place)
                   : filter->id == FILTER_LZF       ? undo_lzf(chunks, place)
                                                    : undo_fletcher32(chunks, place));
    }
    if (chunks->used == chunks->chunk_bytes)
        return DT_OK;
    return fail_chunk(place, "decodes to %zu bytes, not %zu", chunks->used, chunks->chunk_bytes);
}

// Copies the part of the chunk inside the dataset, from dimension `dim` on; `to` and `from` are
// offsets in elements.
static void copy_part(const struct dt_h5_chunks *chunks, const struct place *place,
                      struct band *band, int dim, int64_t to, int64_t from)
{
    int64_t step = chunks->band_step[dim], size = chunks->size;
    int64_t n = chunks->shape[dim] - (int64_t)place->offset[dim];
    n = dt_min_i64(n, chunks->chunk[dim]);
    if (dim != chunks->axis) // a band starts with its chunks in time
        to += (int64_t)place->offset[dim] * step;
    if (dim == 0 && chunks->whole_rows)
        memcpy(band->rows, chunks->from, (size_t)(n * chunks->row * size));
    else if (dim == chunks->n_dims - 1 && step == 1)
        memcpy(band->rows + to * size, chunks->from + from * size, (size_t)(n * size));
    else
        for (int64_t i = 0; i < n; i++, to += step, from += chunks->chunk_step[dim])
            if (dim == chunks->n_dims - 1)
                memcpy(band->rows + to * size, chunks->from + from * size, (size_t)size);
            else
                copy_part(chunks, place, band, dim + 1, to, from);
}

static dt_status fill_band(struct dt_h5_chunks *chunks, const struct dt_h5_array *array,
                           int64_t number, struct band *band)
{
    static const char hint[] = "store the shard in smaller chunks";
    const char *path = array->file->path;
    if (!chunks->from)
        DT_TRY(DT_NEW_HINT(&chunks->from, chunks->room, hint, "a chunk of %s", path));
    if (!chunks->to)
        DT_TRY(DT_NEW_HINT(&chunks->to, chunks->room, hint, "a chunk of %s", path));
    if (!band->rows)
        DT_TRY(DT_NEW_HINT(&band->rows, band_bytes(chunks), hint, "chunks of %s", path));
    band->number = -1; // until it is complete
    for (int64_t column = 0; column < chunks->columns; column++) {
        struct place place = {array, 0, {0}};
        int64_t index = column, step = 1;
        for (int i = chunks->n_dims - 1; i >= 0; i--) {
            int64_t n = dt_ceil_div(chunks->shape[i], chunks->chunk[i]);
            int64_t at = i == chunks->axis ? number : index % n;
            place.offset[i] = (hsize_t)(at * chunks->chunk[i]);
            place.number += at * step;
            step *= n;
            index /= i == chunks->axis ? 1 : n;
        }
        DT_TRY(decode(chunks, &place));
        copy_part(chunks, &place, band, 0, 0, 0);
    }
    band->number = number;
    return DT_OK;
}

static dt_status get_band(struct dt_h5_chunks *chunks, const struct dt_h5_array *array,
                          int64_t number, const struct band **got)
{
    struct band *band = NULL;
    int64_t bytes = band_bytes(chunks);
    for (int64_t i = 0; i < chunks->n_bands && !(band && band->number == number); i++)
        if (!band || chunks->bands[i].number == number || chunks->bands[i].used < band->used)
            band = &chunks->bands[i];
    bool another = !(band && band->number == number) && chunks->n_bands < MOST_BANDS;
    if (another && chunks->n_bands >= BANDS &&
        atomic_fetch_sub(&dt_h5_chunks_room, bytes) < bytes) {
        dt_h5_chunks_room += bytes; // not enough room
        another = false;
    }
    if (another) {
        DT_TRY(dt_list_grow(&chunks->bands, chunks->n_bands, sizeof *band));
        band = &chunks->bands[chunks->n_bands++];
        *band = (struct band){.number = -1};
    }
    band->used = ++chunks->clock;
    *got = band;
    return band->number == number ? DT_OK : fill_band(chunks, array, number, band);
}

dt_status dt_h5_chunks_read(struct dt_h5_chunks *chunks, const struct dt_h5_array *array,
                            int64_t first, int64_t count, void *data)
{
    int64_t row = chunks->row * chunks->size;
    for (char *to = data; count > 0;) {
        const struct band *band = NULL;
        int64_t n = chunks->chunk[chunks->axis], number = first / n, skip = first % n;
        n = dt_min_i64(n - skip, count);
        DT_TRY(get_band(chunks, array, number, &band));
        memcpy(to, band->rows + skip * row, (size_t)(n * row));
        to += n * row;
        first += n;
        count -= n;
    }
    return DT_OK;
}
