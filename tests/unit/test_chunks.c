// Tests filtered chunks. With every order of filters and with odd shapes, the tokens that were
// written are read. Chunks that do not decode to their size are refused with their names, and
// nothing is copied from them.
#include "base/log.h"
#include "data/h5_chunks.h"
#include "data/h5_reader.h"
#include "data/pack.h"
#include "shards.h"

#include <zlib.h>

enum { N = 1000, CHUNK = 300, ROWS = 23, WIDTH = 11 };
static uint8_t u8[N];
static uint16_t u16[N];
static uint32_t u32[N];
static int32_t pairs[ROWS * WIDTH];

static const void *tokens_of(int size)
{
    return size == 1 ? (void *)u8 : size == 2 ? (void *)u16 : (void *)u32;
}

static hid_t type_of(int size)
{
    return size == 1 ? H5T_STD_U8LE : size == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
}

static void check_tokens(const char *path, int size)
{
    static const int ranges[][2] = {{0, N},     {0, 1},   {N - 1, 1}, {299, 2},
                                    {250, 700}, {1, 298}, {600, 300}};
    char got[sizeof u32];
    struct dt_shard shard;
    struct dt_reader *reader;
    CHECK_OK(dt_reader_open(path, &(struct dt_scan_rules){.seq_len = 1}, &shard, &reader));
    if (!reader)
        return;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        int64_t first = ranges[i][0], n = ranges[i][1];
        CHECK_OK(dt_h5_array_read(&reader->arrays[0], first, n, got));
        CHECK(memcmp(got, (const char *)tokens_of(size) + first * size, (size_t)(n * size)) == 0,
              "%s: tokens from %d on differ", path, ranges[i][0]);
    }
    dt_reader_close(reader);
}

// A letter for each filter, in order: z deflate, s shuffle, f fletcher32, l lzf. The library has no
// lzf, so it writes such chunks as they are.
static hid_t with_filters(const char *filters, int n_dims, const hsize_t *chunk)
{
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(plist, n_dims, chunk);
    for (; *filters; filters++)
        if (*filters == 'z')
            H5Pset_deflate(plist, 6);
        else if (*filters == 's')
            H5Pset_shuffle(plist);
        else if (*filters == 'l')
            H5Pset_filter(plist, 32000, H5Z_FLAG_OPTIONAL, 0, NULL);
        else
            H5Pset_fletcher32(plist);
    return plist;
}

static void write_filtered(hid_t file, const char *name, hid_t type, int n_dims,
                           const hsize_t *dims, const hsize_t *most, hid_t plist, const void *data)
{
    put_in(file, name, type, H5Screate_simple(n_dims, dims, most), plist, type, data);
}

// Writes all tokens of one size to a file in chunks and returns its path.
static const char *write_tokens(const char *name, int size, const char *filters, hsize_t chunk)
{
    const hsize_t dims = N;
    const char *path = in_scratch("%s", name);
    hid_t file = new_file(path);
    write_filtered(file, "tokens", type_of(size), 1, &dims, NULL, with_filters(filters, 1, &chunk),
                   tokens_of(size));
    H5Fclose(file);
    return path;
}

static void test_orders(void)
{
    static const char *const orders[] = {"z",  "s",   "f",   "sz",  "zs", "zf",
                                         "fz", "szf", "fsz", "zsf", "zz", "sf"};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        for (int size = 1; size <= 4; size *= 2)
            check_tokens(write_tokens("order.h5", size, orders[i], CHUNK), size);
}

// A chunk may be longer than a dataset that can grow, and chunks at the end may be unfiltered.
static void test_edges(void)
{
    const hsize_t dims = N, most = H5S_UNLIMITED, large = 7 * N, chunks[] = {CHUNK, N / 4};
    hid_t file = new_file(in_scratch("large.h5"));
    write_filtered(file, "tokens", type_of(2), 1, &dims, &most, with_filters("szf", 1, &large),
                   u16);
    H5Fclose(file);
    check_tokens(in_scratch("large.h5"), 2);

    // 777 is not a multiple of the bytes that the checksum sums at a time.
    check_tokens(write_tokens("odd.h5", 1, "f", 777), 1);

    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    for (int i = 0; i < 2; i++) { // the last chunk is partial, then whole
        hid_t plist = with_filters("sz", 1, &chunks[i]);
        H5Pset_chunk_opts(plist, H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS);
        file = H5Fcreate(in_scratch("edge.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, access);
        write_filtered(file, "tokens", type_of(4), 1, &dims, NULL, plist, u32);
        H5Fclose(file);
        check_tokens(in_scratch("edge.h5"), 4);
    }
    H5Pclose(access);
}

static void test_pairs(void)
{
    static const hsize_t dims[] = {ROWS, WIDTH},
                         chunks[][2] = {{5, 4}, {7, WIDTH}, {ROWS, 1}, {1, 6}};
    static int32_t ids[ROWS * WIDTH], labels[ROWS * WIDTH];
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        struct dt_shard shard;
        struct dt_reader *reader;
        hid_t file = new_file(in_scratch("pairs.h5"));
        write_filtered(file, "input_ids", H5T_STD_I32LE, 2, dims, NULL,
                       with_filters("szf", 2, chunks[c]), pairs);
        write_filtered(file, "labels", H5T_STD_I32LE, 2, dims, NULL,
                       with_filters("f", 2, chunks[c]), pairs);
        H5Fclose(file);
        CHECK_OK(dt_reader_open(in_scratch("pairs.h5"), &(struct dt_scan_rules){.seq_len = WIDTH},
                                &shard, &reader));
        for (int64_t first = 0; first < ROWS; first += 3) {
            int64_t n = ROWS - first < 6 ? ROWS - first : 6;
            CHECK_OK(dt_h5_array_read(&reader->arrays[0], first, n, ids));
            CHECK_OK(dt_h5_array_read(&reader->arrays[1], first, n, labels));
            CHECK(memcmp(ids, pairs + first * WIDTH, (size_t)(n * WIDTH) * sizeof *ids) == 0 &&
                      memcmp(labels, pairs + first * WIDTH, (size_t)(n * WIDTH) * sizeof *ids) == 0,
                  "rows from %ld on differ, chunks of %d by %d", (long)first, (int)chunks[c][0],
                  (int)chunks[c][1]);
        }
        dt_reader_close(reader);
    }
}

// Replaces the raw bytes of one chunk. Verify and a plain read must name the file and the chunk.
static void expect_bad_chunk(const char *filters, const void *raw, size_t bytes, uint32_t skipped,
                             const char *phrase)
{
    const hsize_t offset = CHUNK;
    const char *path = write_tokens("bad.h5", 2, filters, CHUNK);
    char buffer[2 * N];
    struct dt_shard shard;
    struct dt_reader *reader;
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t id = H5Dopen2(file, "tokens", H5P_DEFAULT);
    CHECK(H5Dwrite_chunk(id, H5P_DEFAULT, skipped, &offset, bytes, raw) >= 0,
          "cannot write a chunk");
    H5Dclose(id), H5Fclose(file);

    CHECK_INT(dt_verify_shard(path, NULL, false, &shard), DT_USER);
    CHECK_SAYS(path);
    CHECK_SAYS("chunk 1 of /tokens");
    CHECK_SAYS(phrase);
    CHECK_OK(dt_reader_open(path, &(struct dt_scan_rules){.seq_len = 1}, &shard, &reader));
    const struct dt_h5_array *tokens = &reader->arrays[0];
    CHECK_OK(dt_h5_array_read(tokens, 0, CHUNK, buffer)); // the chunk before is good
    for (int again = 0; again < 2; again++)
        CHECK_INT(dt_h5_array_read(tokens, CHUNK - 1, 2, buffer), DT_USER);
    CHECK_OK(dt_h5_array_read(tokens, 2 * CHUNK, N - 2 * CHUNK, buffer));
    dt_reader_close(reader);
}

static void test_bad_sizes(void)
{
    static unsigned char packed[4 * N], plain[8 * N];
    const struct {
        uLong bytes;
        const char *phrase;
    } sizes[] = {{2 * CHUNK - 2, "decodes to 598 bytes, not 600"},
                 {10, "decodes to 10 bytes, not 600"},
                 {0, "decodes to 0 bytes, not 600"},
                 {2 * CHUNK + 1, "decodes to 601 bytes, not 600"},
                 {8 * N, "more than 600 bytes"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uLongf bytes = sizeof packed;
        CHECK_INT(compress2(packed, &bytes, plain, sizes[i].bytes, 6), Z_OK);
        expect_bad_chunk("z", packed, bytes, 0, sizes[i].phrase);
    }
    uLongf bytes = sizeof packed;
    CHECK_INT(compress2(packed, &bytes, plain, 2 * CHUNK, 6), Z_OK);
    expect_bad_chunk("z", packed, bytes - 5, 0, "deflate stream");
    expect_bad_chunk("z", plain, 100, 0, "not a valid deflate stream");
    // A chunk that was stored unfiltered and is too short, and one longer than anything that
    // decodes to a chunk.
    expect_bad_chunk("z", plain, 100, 1, "decodes to 100 bytes, not 600");
    expect_bad_chunk("z", plain, 8 * N, 1, "in more bytes");
    expect_bad_chunk("s", plain, 598, 0, "decodes to 598 bytes, not 600");
    expect_bad_chunk("f", plain, 3, 0, "shorter than its fletcher32");
    expect_bad_chunk("f", plain, 100, 0, "decodes to 96 bytes, not 600");
    plain[0] = 1;
    expect_bad_chunk("f", plain, 604, 0, "does not match its fletcher32");
}

// Encodes bytes for LibLZF: literals, and copies of the nearest equal bytes.
static size_t encode_lzf(const unsigned char *from, size_t n, unsigned char *to)
{
    size_t used = 0;
    for (size_t i = 0, length = 0; i < n; i += length) {
        size_t distance = 1, most = n - i < 264 ? n - i : 264;
        for (length = 0; distance <= i && distance <= 8192; distance++) {
            for (length = 0; length < most && from[i + length] == from[i + length - distance];)
                length++;
            if (length > 2)
                break;
        }
        if (length > 2) {
            size_t code = length - 2, at = distance - 1;
            to[used++] = (unsigned char)((code < 7 ? code : 7) << 5 | at >> 8);
            if (code >= 7)
                to[used++] = (unsigned char)(code - 7);
            to[used++] = (unsigned char)at;
        } else { // one literal
            length = 1;
            to[used++] = 0;
            to[used++] = from[i];
        }
    }
    return used;
}

static void test_lzf(void)
{
    static unsigned char packed[4 * N], long_run[CHUNK];
    static uint16_t chunk[CHUNK];
    const char *path = write_tokens("lzf.h5", 2, "l", CHUNK);
    check_tokens(path, 2); // no chunk is filtered
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t id = H5Dopen2(file, "tokens", H5P_DEFAULT);
    for (hsize_t at = 0; at < N; at += CHUNK) {
        memset(chunk, 0, sizeof chunk);
        memcpy(chunk, u16 + at, sizeof *u16 * (N - at < CHUNK ? N - at : CHUNK));
        size_t bytes = encode_lzf((const unsigned char *)chunk, sizeof chunk, packed);
        CHECK(H5Dwrite_chunk(id, H5P_DEFAULT, 0, &at, bytes, packed) >= 0, "no chunk");
    }
    H5Dclose(id), H5Fclose(file);
    check_tokens(path, 2);
    // A copy of 264 bytes (7 and 0xff) that overlaps the byte before, which it repeats.
    const unsigned char runs[] = {0, 5, 0xe0, 0xff, 0, 0xe0, 0xff, 0, 0xe0, 62, 0};
    expect_bad_chunk("l", runs, sizeof runs - 1, 0, "is not a valid lzf stream");
    expect_bad_chunk("l", runs, sizeof runs - 3, 0, "decodes to 529 bytes, not 600");
    // Copies from before the start.
    expect_bad_chunk("l", runs + 2, sizeof runs - 2, 0, "is not a valid lzf stream");
    expect_bad_chunk("l", (const unsigned char[]){31, 1, 2}, 3, 0, "is not a valid lzf stream");
    memset(long_run, 0xff, sizeof long_run);
    memcpy(long_run, "\0\5", 2);
    for (size_t i = 2; i + 3 <= sizeof long_run; i += 3)
        memcpy(long_run + i, "\xe0\xff\0", 3);
    // Decodes to too many bytes.
    expect_bad_chunk("l", long_run, sizeof long_run, 0, "is not a valid lzf stream");
}

static void test_unknown_filter(void)
{
    const hsize_t dims = N, chunk = CHUNK;
    hid_t plist = with_filters("", 1, &chunk), file = new_file(in_scratch("nbit.h5"));
    struct dt_shard shard;
    H5Pset_nbit(plist);
    write_filtered(file, "tokens", type_of(2), 1, &dims, NULL, plist, u16);
    H5Fclose(file);
    CHECK_INT(dt_verify_shard(in_scratch("nbit.h5"), NULL, false, &shard), DT_USER);
    CHECK_SAYS("nbit.h5: /tokens is stored with filter 5 (nbit)");
    CHECK_ADVISES("h5repack");
}

// Images: chunks next to each other in every dimension, with sizes that do not divide those of the
// dataset.
static void test_dimensions(void)
{
    enum { IMAGES = 10, HEIGHT = 5, BREADTH = 7, COLOURS = 3, IMAGE = HEIGHT * BREADTH * COLOURS };
    static uint8_t values[IMAGES * IMAGE], got[IMAGES * IMAGE];
    const hsize_t dims[4] = {IMAGES, HEIGHT, BREADTH, COLOURS};
    static const hsize_t chunks[][4] = {{3, 2, 3, 2}, {4, 5, 7, 3}, {1, 5, 2, 3}, {10, 5, 7, 1}};
    for (int i = 0; i < IMAGES * IMAGE; i++)
        values[i] = (uint8_t)(i * 37 % 253);
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        hid_t plist = with_filters("sz", 4, chunks[c]), file = new_file(in_scratch("images.h5"));
        struct dt_h5_file open;
        struct dt_h5_array array;
        bool found;
        write_filtered(file, "images", H5T_STD_U8LE, 4, dims, NULL, plist, values);
        H5Fclose(file);
        CHECK_OK(dt_h5_open(in_scratch("images.h5"), &open));
        CHECK_OK(dt_h5_array_open(&open, "/images", &array, &found));
        CHECK_INT(array.shape[1], IMAGE);
        for (int first = 0; first < IMAGES; first++) {
            CHECK_OK(dt_h5_array_read(&array, first, IMAGES - first, got));
            CHECK(memcmp(got, values + first * IMAGE, (size_t)(IMAGES - first) * IMAGE) == 0,
                  "chunks %zu, from %d on", c, first);
        }
        dt_h5_array_close(&array);
        dt_h5_close(&open);
    }
}

// A band that fails halfway has overwritten a kept band, which is then read again.
static void test_kept_bands(void)
{
    enum { BAND = 5, READ = BAND * WIDTH };
    static const hsize_t dims[] = {ROWS, WIDTH}, chunk[] = {BAND, 6}, bad[] = {2 * BAND, 6};
    static const char raw[10];
    int32_t got[READ];
    struct dt_h5_file open;
    struct dt_h5_array array;
    bool found;
    hid_t file = new_file(in_scratch("bands.h5"));
    write_filtered(file, "input_ids", H5T_STD_I32LE, 2, dims, NULL, with_filters("z", 2, chunk),
                   pairs);
    hid_t id = H5Dopen2(file, "input_ids", H5P_DEFAULT);
    CHECK(H5Dwrite_chunk(id, H5P_DEFAULT, 0, bad, sizeof raw, raw) >= 0, "cannot write a chunk");
    H5Dclose(id), H5Fclose(file);
    CHECK_OK(dt_h5_open(in_scratch("bands.h5"), &open));
    CHECK_OK(dt_h5_array_open(&open, "/input_ids", &array, &found));
    dt_h5_chunks_room = 0;
    for (int band = 0; band < 2; band++) // as many bands as are always kept
        CHECK_OK(dt_h5_array_read(&array, band * BAND, BAND, got));
    CHECK_FAILS(dt_h5_array_read(&array, 2 * BAND, BAND, got), DT_USER, "chunk 5 of /input_ids");
    for (int band = 0; band < 2; band++) {
        CHECK_OK(dt_h5_array_read(&array, band * BAND, BAND, got));
        CHECK(memcmp(got, pairs + band * READ, sizeof got) == 0, "band %d differs", band);
    }
    dt_h5_array_close(&array);
    dt_h5_close(&open);
    dt_h5_chunks_room = DT_KEPT_CHUNK_BYTES;
}

static void zero_chunks(const struct dt_h5_array *array, int n)
{
    static const char zeros[2 * CHUNK];
    FILE *raw = fopen(array->file->path, "r+b");
    for (int i = 0; i < n; i++) {
        hsize_t at = (hsize_t)i * CHUNK, bytes;
        haddr_t offset;
        unsigned filters;
        CHECK(H5Dget_chunk_info_by_coord(array->id, &at, &filters, &offset, &bytes) >= 0 &&
                  fseek(raw, (long)offset, SEEK_SET) == 0 && bytes <= sizeof zeros &&
                  fwrite(zeros, 1, bytes, raw) == bytes,
              "cannot overwrite chunk %d", i);
    }
    fclose(raw);
}

// Two bands always stay decoded, and more as long as there is room. Kept bands are not read from
// the file again, and closing gives the room back.
static void test_room(void)
{
    enum { CHUNKS = 4, BYTES = CHUNK * 2, ALWAYS = 2 };
    for (int room = CHUNKS - ALWAYS; room >= 0; room--) {
        struct dt_shard shard;
        struct dt_reader *reader;
        uint16_t got;
        const char *path = write_tokens("room.h5", 2, "s", CHUNK);
        dt_h5_chunks_room = room * BYTES + 1;
        CHECK_OK(dt_reader_open(path, &(struct dt_scan_rules){.seq_len = 1}, &shard, &reader));
        CHECK_INT(shard.chunk_bytes, BYTES);
        CHECK_INT(shard.compressed_bytes, N * 2);
        for (int i = 0; i < CHUNKS; i++)
            CHECK_OK(dt_h5_array_read(&reader->arrays[0], i * CHUNK, 1, &got));
        CHECK_INT(dt_h5_chunks_room, 1);
        zero_chunks(&reader->arrays[0], CHUNKS);
        for (int i = CHUNKS - 1; i >= 0; i--) {
            CHECK_OK(dt_h5_array_read(&reader->arrays[0], i * CHUNK, 1, &got));
            CHECK_INT(got, i >= CHUNKS - ALWAYS - room ? u16[i * CHUNK] : 0);
        }
        dt_reader_close(reader);
        CHECK_INT(dt_h5_chunks_room, room * BYTES + 1);
    }
    dt_h5_chunks_room = DT_KEPT_CHUNK_BYTES;
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    for (int i = 0; i < N; i++) {
        u8[i] = (uint8_t)(i * i % 251);
        u16[i] = (uint16_t)(i * 77);
        u32[i] = (uint32_t)i * 2654435761u;
    }
    for (int i = 0; i < ROWS * WIDTH; i++)
        pairs[i] = i * i;
    dt_log_quiet(true);
    make_scratch();
    RUN(test_orders, test_edges, test_pairs, test_dimensions, test_kept_bands, test_room,
        test_bad_sizes, test_unknown_filter, test_lzf);
    remove_scratch();
    return test_end();
}
