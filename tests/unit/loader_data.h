// Data of the loader's tests: four shards of known tokens in every layout, and pairs.
#pragma once

#include "base/log.h"
#include "data/h5_pack.h"
#include "data/loader.h"
#include "shards.h"

enum { T = 16, N_SHARDS = 4, MOST = 5000, VOCAB = 251, RESET_TOKEN = 3 };
static const int64_t lengths[N_SHARDS] = {1000, 5, 1 + 16 * 40, 3333};

// Token p of shard s; prime periods, so that no two windows are alike.
static inline int64_t token(int64_t s, int64_t p)
{
    return (p * p + 7 * p + 13 * s) % VOCAB;
}

static inline const void *tokens_of(int64_t s, int64_t size)
{
    static uint8_t u8[MOST];
    static uint16_t u16[MOST];
    static uint32_t u32[MOST];
    for (int64_t p = 0; p < MOST; p++) {
        u8[p] = (uint8_t)token(s, p);
        u16[p] = (uint16_t)token(s, p);
        u32[p] = (uint32_t)token(s, p);
    }
    return size == 1 ? (void *)u8 : size == 2 ? (void *)u16 : (void *)u32;
}

// Documents of shard s start at 0, then every 37 + s tokens.
static inline bool starts_document(int64_t s, int64_t p)
{
    return p % (37 + s) == 0;
}

enum layout { PLAIN, HASHED, CHUNKED, GZIP, FLETCHER, COMPACT, USERBLOCK };

static inline void write_hashed(const char *path, int64_t s, int64_t size, bool documents)
{
    struct dt_shard_writer *writer;
    dt_dtype type = size == 1 ? DT_U8 : size == 2 ? DT_U16 : DT_U32;
    const char *tokens = tokens_of(s, size);
    CHECK_OK(dt_shard_create(path, type, lengths[s], &writer));
    for (int64_t p = 0; p < lengths[s]; p++) {
        if (documents && starts_document(s, p))
            CHECK_OK(dt_shard_start_document(writer));
        CHECK_OK(dt_shard_append(writer, tokens + p * size, 1));
    }
    CHECK_OK(dt_shard_finish(writer, documents));
}

static inline void write_layout(const char *path, int64_t s, int64_t size, enum layout layout)
{
    const hid_t disk[] = {0, H5T_STD_U8LE, H5T_STD_U16LE, 0, H5T_STD_U32LE};
    struct put what = {.name = "tokens", .disk = disk[size], .memory = disk[size], .n_dims = 1};
    what.dims[0] = (hsize_t)lengths[s];
    what.data = tokens_of(s, size);
    if (layout == CHUNKED || layout == GZIP || layout == FLETCHER)
        what.chunk = lengths[s] < 300 ? (hsize_t)lengths[s] : 300;
    what.gzip = layout == GZIP;
    what.fletcher = layout == FLETCHER;
    what.compact = layout == COMPACT;
    hid_t plist = H5Pcreate(H5P_FILE_CREATE);
    if (layout == USERBLOCK)
        H5Pset_userblock(plist, 1024);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, plist, H5P_DEFAULT);
    put(file, &what);
    H5Fclose(file);
    H5Pclose(plist);
}

static inline void write_shards(int64_t size, enum layout layout, bool documents)
{
    for (int64_t s = 0; s < N_SHARDS; s++) {
        if (layout == HASHED)
            write_hashed(in_scratch("s%d.h5", (int)s), s, size, documents);
        else
            write_layout(in_scratch("s%d.h5", (int)s), s, size, layout);
    }
}

// The shards that are of the pattern now; good until the next scan.
static inline struct dt_loader_config config_for(const char *pattern)
{
    return (struct dt_loader_config){
        .dataset = scan(pattern, &(struct dt_scan_rules){.seq_len = T}),
        .rules = {.seed = 99, .vocab_size = VOCAB, .reset_token = -1, .verify = true},
        .batch = 8,
        .block = 5,
        .shuffle = true,
        .size = 1,
        .prefetch = 2,
    };
}

static inline struct dt_loader *open_loader(const struct dt_loader_config *config,
                                            int64_t first_step)
{
    struct dt_loader *loader;
    CHECK_OK(dt_loader_open(config, first_step, &loader));
    return loader;
}

static inline const struct dt_batch *next_batch(struct dt_loader *loader)
{
    const struct dt_batch *batch;
    CHECK_OK(dt_loader_next(loader, &batch, NULL));
    return batch;
}

static inline const int32_t *row_of(const struct dt_batch *batch, const char *name, int64_t row)
{
    const struct dt_array *array = dt_batch_find(batch, name);
    CHECK(array && array->spec.type == DT_I32 && array->spec.width == 1 && batch->length == T,
          "no good %s", name);
    return (const int32_t *)array->data + row * T;
}

static inline int32_t pair_value(int64_t i, int64_t t)
{
    return (int32_t)((i * i + 3 * t) % VOCAB);
}

static inline void write_pairs(int64_t n, int64_t bad_row, int32_t bad_id, int32_t bad_label,
                               hsize_t chunk)
{
    static int32_t ids[200 * T], labels[200 * T];
    for (int64_t i = 0; i < n * T; i++) {
        ids[i] = pair_value(i / T, i % T);
        labels[i] = i % 5 == 0 ? -100 : pair_value(i / T, i % T + 1);
    }
    ids[bad_row * T + 4] = bad_id;
    labels[bad_row * T + 6] = bad_label;
    hid_t file = new_file(in_scratch("p.h5")), type = H5T_STD_I32LE;
    struct put what = {"input_ids", type, type, 2, {(hsize_t)n, T}, ids, chunk, 0, false, false};
    put(file, &what);
    what.name = "labels";
    what.data = labels;
    put(file, &what);
    H5Fclose(file);
}
