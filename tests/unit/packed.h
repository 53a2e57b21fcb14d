// Reads the output of dtrain pack as text.
#pragma once

#include "data/h5_reader.h"
#include "data/h5_starts.h"
#include "data/pack.h"
#include "shards.h"

// All tokens of a side as text, '|' where a document starts; checks each shard on the way.
// `letters`: the text of tokens; NULL: they are bytes.
static inline char *read_side_as(const char *letters, const char *output, const char *side,
                                 int64_t n_shards)
{
    static char text[1 << 16];
    size_t used = 0;
    for (int64_t i = 0; i < n_shards; i++) {
        static uint8_t starts[1 << 15], bytes[1 << 15];
        char path[DT_PATH];
        struct dt_shard shard;
        struct dt_reader *reader;
        struct dt_h5_starts documents;
        snprintf(path, sizeof path, "%s/%s-%05ld.h5", output, side, (long)i);
        CHECK_OK(dt_verify_shard(path, NULL, false, &shard));
        CHECK_OK(dt_reader_open(path, &(struct dt_scan_rules){.seq_len = 1}, &shard, &reader));
        CHECK_OK(dt_h5_array_read(&reader->arrays[0], 0, shard.count, bytes));
        CHECK_OK(dt_h5_starts_open(&reader->file, &reader->arrays[0], &documents));
        CHECK_OK(dt_h5_starts_mark(&documents, 0, shard.count, starts));
        for (int64_t p = 0; p < shard.count; p++) {
            if (starts[p])
                text[used++] = '|';
            text[used++] = letters ? letters[bytes[p]] : (char)bytes[p];
        }
        dt_h5_array_close(&documents.array);
        dt_reader_close(reader);
    }
    text[used] = 0;
    return text;
}

static inline char *read_side(const char *output, const char *side, int64_t n_shards)
{
    return read_side_as(NULL, output, side, n_shards);
}
