// A reader kind knows one schema: how its shards are recognised, what a window is, which arrays it
// becomes. Each kind is one constant literal in a file of its own and one row in readers.c. The
// room data calls a kind through its functions; `data.format` names the kinds and the schemas of
// episodes that a user may ask for. Kinds that read HDF5 include h5_reader.h.
#pragma once

#include "base/round.h"
#include "data/batch.h"
#include "data/dataset.h"

enum { DT_READER_DATASETS = 4, DT_READER_ALIGN = 64 };

struct dt_reader;         // one open shard
struct dt_episode_schema; // h5_episodes.h

// The numbers of a frame that have statistics.
enum dt_numbers {
    DT_NUMBERS_FRAMES,
    DT_NUMBERS_TARGETS,
    DT_NUMBERS_WEIGHTS,
    DT_NUMBERS_KINDS,
};

// What a masked language model learns from: a position's label is its own token. Of the positions
// that have one a share `rate` keep it, drawn by seed, epoch and window alone; of their tokens 80 %
// become `token`, 10 % a random one, and 10 % stay [Devlin et al. 2019]. With rate 0 all keep it,
// and every token stays.
struct dt_masking {
    bool on;
    double rate;
    int32_t token;
};

// How a loader wants every window read.
struct dt_read_rules {
    uint64_t seed;       // for windows that are drawn, not read
    int64_t vocab_size;  // tokens at or above are DT_USER errors: shard, offset, token, vocabulary
    int64_t reset_token; // -1: none. Documents start where /doc_starts says, else here; and at the
                         // start of a segment and of each row of pairs
    bool reset_after;    // … after the token instead of at it
    struct dt_masking masking;
    bool verify;             // check stored checksums of what is read
    bool carry;              // batches have "reset", 1 where a segment starts at the least
    bool reverse_complement; // half of the windows are those of the other strand
    // Frames: (x - mean) / deviation, both [F], 0 of a missing number, in fp32, then rounded to
    // frames_type (fp32 or bf16). NULL: as stored; then the columns `bytes`, of dt_dataset.bytes,
    // are an array of their own.
    const float *mean, *deviation;
    const float *missing; // [F], of frames as stored: in place of a missing number; NULL: 0
    enum dt_dtype frames_type;
    struct dt_byte_columns bytes;
};

// Consecutive windows of one shard, as a slot of the batch keeps them.
struct dt_block {
    int64_t shard, first, windows; // windows 0: nothing is here
    int64_t epoch;                 // in which a window is written
    char *memory;                  // of block_bytes, aligned
    const void *data;              // in `memory`; the kind's own, from `read` to `write`
    int64_t rows;                  // the kind's own, too
};

// A part of a shard that no window leaves, and from whose start to whose end a recurrent state
// goes: an episode, a stream of tokens, a row of pairs.
struct dt_segment {
    const char *group;    // "/data/demo_3", which has its datasets; NULL: segments share datasets
    int64_t first, count; // its rows in its datasets
    int64_t rows;         // of these
    int64_t window;       // its first one
    int64_t label;        // the label of a position is that many positions after it
};

// Functions other than open, arrays and write may be NULL: nothing to do. One thread at a time
// uses a reader.
struct dt_reader_kind {
    const char *name;   // of the schema: "tokens"
    const char *unit;   // what dt_shard.count counts: "tokens", "rows"
    const char *source; // value of data.train that means data without files; NULL: HDF5 shards, …
    const char *datasets[DT_READER_DATASETS]; // … recognised by these: all must be there
    bool strands;                             // it reads DNA: rules->reverse_complement
    const struct dt_episode_schema *schema;   // where episodes are; NULL: the kind has none. Its
                                              // groups recognise a kind without `datasets`

    // Checks all that metadata can show, and fills shard->type, count, windows, row, width, stride
    // and, where they apply, hash_block and doc_starts. The kind's own state is a struct from
    // malloc at reader->own, which is freed after `close`.
    dt_status (*open)(struct dt_reader *reader, const struct dt_scan_rules *rules,
                      struct dt_shard *shard);
    void (*close)(struct dt_reader *reader);
    // first_hash and last_hash of a shard that is not empty; reads a little data.
    dt_status (*fingerprint)(struct dt_reader *reader, struct dt_shard *shard);
    // data_hash of such a shard, of at most `bytes` of its data.
    dt_status (*hash)(struct dt_reader *reader, const struct dt_shard *shard, int64_t bytes,
                      uint64_t *hash);
    // What is checked as a whole, once, before a shard's first block (checksums if `verify`).
    dt_status (*check)(struct dt_reader *reader, bool verify);
    // For `dtrain verify`: reads units [first, first + n), and checks every checksum and value.
    // Counts shard->unlabeled.
    dt_status (*verify)(struct dt_reader *reader, struct dt_shard *shard, int64_t first, int64_t n);

    // Adds the arrays that batches have under these rules, in the order of `rows` below.
    void (*arrays)(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                   struct dt_array_list *list);
    // Memory of a block of this many windows of a shard.
    int64_t (*block_bytes)(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                           const struct dt_shard *shard, int64_t windows);
    // Reads the windows that *block names.
    dt_status (*read)(struct dt_reader *reader, const struct dt_dataset *dataset,
                      const struct dt_read_rules *rules, struct dt_block *block);
    // Writes one window of the block into rows[i], [seq_len, width] of array i. Checks values.
    dt_status (*write)(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                       const struct dt_block *block, int64_t window, void *const *rows);

    // Describes segment `number`, counted from 0, in the order of their windows; predictions of
    // whole segments (rules->whole) call it. False: the shard has fewer. NULL: it is not a file's
    // data.
    bool (*segment)(struct dt_reader *reader, const struct dt_shard *shard, int64_t number,
                    struct dt_segment *segment);

    // lengths[t], t < seq_len: tokens of the document that position t of a window is in, 0
    // after the shard's end. Of shards with doc_starts; NULL: the kind has none.
    dt_status (*documents)(struct dt_reader *reader, const struct dt_shard *shard, int64_t window,
                           int64_t *lengths);

    // For kinds with frames: reads the numbers of frames [first, first + n) of the shard as stored,
    // [n, F or W or 1 + H] fp32, NaN where one is missing.
    dt_status (*numbers)(struct dt_reader *reader, enum dt_numbers which, int64_t first, int64_t n,
                         float *numbers);
    // Writes which columns frames and targets have (columns.h: dt_columns_text; as rules say where
    // that does not fit); NULL: they have no names.
    void (*columns)(const struct dt_reader *reader, char inputs[DT_DATA_TEXT],
                    char targets[DT_DATA_TEXT]);
    // Writes where a window starts, for people: "/data/demo_3:60". NULL: at window * stride.
    void (*place)(struct dt_reader *reader, int64_t window, char *text, size_t size);
};

// readers.c; ends with NULL. A test program may link a table of its own.
extern const struct dt_reader_kind *const dt_reader_kinds[];
const struct dt_reader_kind *dt_reader_find(const char *name); // or NULL
const char *dt_reader_formats(void); // "auto|tokens|…": the names of those that read files
const struct dt_reader_kind *dt_reader_source(const char *text); // whose source it is, or NULL

// Opens a shard (`path` is borrowed) and checks what metadata can show. Fills *shard except for its
// path and `before`. DT_USER says what is wrong.
dt_status dt_reader_open(const char *path, const struct dt_scan_rules *rules,
                         struct dt_shard *shard, struct dt_reader **reader);
void dt_reader_close(struct dt_reader *reader); // NULL is fine
dt_status dt_reader_fingerprint(struct dt_reader *reader, struct dt_shard *shard);
dt_status dt_reader_hash_data(struct dt_reader *reader, struct dt_shard *shard, int64_t bytes);

static inline int64_t dt_reader_align(int64_t bytes)
{
    return dt_round_up(bytes, DT_READER_ALIGN);
}
