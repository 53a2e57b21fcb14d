// A reader kind implements one schema: how its shards are recognised, what a window is, and which
// arrays it becomes. Each kind is one constant literal in its own file and one row in readers.c,
// and is called only through its functions. Users select kinds and schemas of episodes by
// `data.format`. Kinds that read HDF5 include h5_reader.h.
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

// Labels of a masked language model: a position's label is its own token. A share `rate` of the
// positions, drawn by seed, epoch and window alone, keep their label; of their tokens 80 % become
// `token`, 10 % a random token, and 10 % are unchanged [Devlin et al. 2019]. With rate 0 all labels
// are kept and no token changes.
struct dt_masking {
    bool on;
    double rate;
    int32_t token;
};

// How a loader reads windows.
struct dt_read_rules {
    uint64_t seed;       // for synthetic windows
    int64_t vocab_size;  // a token >= this is a DT_USER error: shard, offset, token, vocabulary
    int64_t reset_token; // -1: none. Documents start at /doc_starts if present, else at this token,
                         // and always at the start of a segment and of each row of pairs
    bool reset_after;    // … after the token instead of at it
    struct dt_masking masking;
    bool verify;             // check stored checksums of the data read
    bool carry;              // batches have "reset", which is 1 at least where a segment starts
    bool reverse_complement; // half of the windows are read as their reverse complement
    // Frames become (x - mean) / deviation, both [F], or 0 if missing, in fp32, then rounded to
    // frames_type (fp32 or bf16). NULL: as stored; then the columns `bytes` (of dt_dataset.bytes)
    // are a separate array.
    const float *mean, *deviation;
    const float *missing; // [F], frames as stored: replaces missing numbers; NULL: 0
    enum dt_dtype frames_type;
    struct dt_byte_columns bytes;
};

// Consecutive windows of one shard, kept by a slot of the batch.
struct dt_block {
    int64_t shard, first, windows; // windows 0: empty
    int64_t epoch;                 // epoch of the window to write
    char *memory;                  // block_bytes, aligned
    const void *data;              // in `memory`; set by the kind's `read` for its `write`
    int64_t rows;                  // set by `read` for `write`
};

// A part of a shard that no window crosses and in which recurrent state is carried: an episode, a
// stream of tokens, a row of pairs.
struct dt_segment {
    const char *group;    // "/data/demo_3", with its datasets; NULL: segments share datasets
    int64_t first, count; // its rows in the datasets
    int64_t rows;         // rows of the datasets
    int64_t window;       // its first window
    int64_t label;        // a position's label is this many positions later
};

// Functions except open, arrays and write may be NULL. A reader is used by one thread at a time.
struct dt_reader_kind {
    const char *name;   // the schema's: "tokens"
    const char *unit;   // what dt_shard.count counts: "tokens", "rows"
    const char *source; // value of data.train for data without files; NULL: HDF5 shards, …
    const char *datasets[DT_READER_DATASETS]; // … recognised by having all these
    bool strands;                             // supports rules->reverse_complement (DNA)
    const struct dt_episode_schema *schema;   // of episodes; its groups recognise a kind without
                                              // `datasets`

    // Checks everything that metadata can show, and fills shard->type, count, windows, row, width,
    // stride and, if applicable, hash_block and doc_starts. reader->own may be a malloc'ed struct
    // with the kind's state, which is freed after `close`.
    dt_status (*open)(struct dt_reader *reader, const struct dt_scan_rules *rules,
                      struct dt_shard *shard);
    void (*close)(struct dt_reader *reader);
    // Fills first_hash and last_hash of a non-empty shard; reads a little data.
    dt_status (*fingerprint)(struct dt_reader *reader, struct dt_shard *shard);
    // Fills data_hash of a non-empty shard from at most `bytes` of its data.
    dt_status (*hash)(struct dt_reader *reader, const struct dt_shard *shard, int64_t bytes,
                      uint64_t *hash);
    // Checks the shard as a whole, once before its first block (checksums if `verify`).
    dt_status (*check)(struct dt_reader *reader, bool verify);
    // For `dtrain verify`: reads units [first, first + n) and checks every checksum and value.
    // Counts shard->unlabeled.
    dt_status (*verify)(struct dt_reader *reader, struct dt_shard *shard, int64_t first, int64_t n);

    // Adds the arrays of batches under these rules, in the order of `rows` below.
    void (*arrays)(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                   struct dt_array_list *list);
    // Bytes of memory for a block of this many windows of a shard.
    int64_t (*block_bytes)(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                           const struct dt_shard *shard, int64_t windows);
    // Reads the windows that *block names.
    dt_status (*read)(struct dt_reader *reader, const struct dt_dataset *dataset,
                      const struct dt_read_rules *rules, struct dt_block *block);
    // Writes one window of the block to rows[i], [seq_len, width] of array i, and checks its
    // values.
    dt_status (*write)(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                       const struct dt_block *block, int64_t window, void *const *rows);

    // Describes segment `number` (from 0, in the order of windows), for predictions of whole
    // segments (rules->whole). False: the shard has fewer. NULL: the data are not in files.
    bool (*segment)(struct dt_reader *reader, const struct dt_shard *shard, int64_t number,
                    struct dt_segment *segment);

    // For shards with doc_starts: lengths[t], t < seq_len, is the length in tokens of the document
    // at position t of a window, 0 after the shard's end. NULL: the kind has no documents.
    dt_status (*documents)(struct dt_reader *reader, const struct dt_shard *shard, int64_t window,
                           int64_t *lengths);

    // For kinds with frames: reads the numbers of frames [first, first + n) of the shard as stored,
    // [n, F or W or 1 + H] fp32, NaN where one is missing.
    dt_status (*numbers)(struct dt_reader *reader, enum dt_numbers which, int64_t first, int64_t n,
                         float *numbers);
    // Writes the names of the columns of frames and targets (columns.h: dt_columns_text; the text
    // of the rules if that does not fit). NULL: columns have no names.
    void (*columns)(const struct dt_reader *reader, char inputs[DT_DATA_TEXT],
                    char targets[DT_DATA_TEXT]);
    // Describes a window's start for messages: "/data/demo_3:60". NULL: window * stride.
    void (*place)(struct dt_reader *reader, int64_t window, char *text, size_t size);
};

// readers.c; ends with NULL. A test program may link its own table.
extern const struct dt_reader_kind *const dt_reader_kinds[];
const struct dt_reader_kind *dt_reader_find(const char *name); // or NULL
const char *dt_reader_formats(void); // "auto|tokens|…": kinds that read files
const struct dt_reader_kind *dt_reader_source(const char *text); // by its source, or NULL

// Opens a shard (`path` is borrowed) and checks its metadata. Fills *shard except for its path and
// `before`. DT_USER: the shard is invalid.
dt_status dt_reader_open(const char *path, const struct dt_scan_rules *rules,
                         struct dt_shard *shard, struct dt_reader **reader);
void dt_reader_close(struct dt_reader *reader); // NULL is fine
dt_status dt_reader_fingerprint(struct dt_reader *reader, struct dt_shard *shard);
dt_status dt_reader_hash_data(struct dt_reader *reader, struct dt_shard *shard, int64_t bytes);

static inline int64_t dt_reader_align(int64_t bytes)
{
    return dt_round_up(bytes, DT_READER_ALIGN);
}
