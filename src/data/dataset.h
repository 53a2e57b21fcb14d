// A dataset is the shards of a glob with their metadata. Rank 0 finds and checks them; the other
// ranks get a copy.
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"
#include "data/mixture.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DT_DATA_TEXT = 1024, // bytes of data.inputs and the like (base/config.h: DT_CONFIG_STRING_MAX)
    DT_DATA_NAME = 128,
    DT_IDS_MAX = 16, // columns of integers with a table
    DT_TABLE_NAME = 24,
    DT_TARGETS_MAX = 64, // heads
    DT_BYTE_RANGES = 8,
};

// Columns of frames that stay bytes until the model reads them: ranges [first, end), rising.
struct dt_byte_columns {
    int64_t n;
    struct {
        int64_t first, end;
    } at[DT_BYTE_RANGES];
};
// How many columns before `column` are among them; NULL: none are.
static inline int64_t dt_bytes_before(const struct dt_byte_columns *bytes, int64_t column)
{
    int64_t n = 0;
    for (int64_t i = 0; bytes && i < bytes->n && bytes->at[i].first < column; i++)
        n += (column < bytes->at[i].end ? column : bytes->at[i].end) - bytes->at[i].first;
    return n;
}

// What one head learns from: `width` columns of the array `targets`, after those of the heads
// before it.
struct dt_target {
    char name[DT_DATA_NAME];
    int64_t width;
    int64_t classes; // each value is a whole number in [0, classes) or DT_IGNORED, which is no
                     // target; 0: any finite number
};

// How shards are read, from the configuration. Zeros are the defaults; no pointers, since every
// rank gets a copy as bytes.
struct dt_scan_rules {
    int64_t seq_len;         // 0: any; then no windows are counted
    int64_t vocab_size;      // tokens; 0: any
    bool carry;              // state is carried: rows of pairs may be several windows long
    bool reverse_complement; // tokens: shards must have the attribute complement
    // The keys below are for frames.
    char format[DT_DATA_NAME]; // name of a reader kind; "" or "auto": recognised by the datasets
    // Datasets of an episode: PATH, PATH[i], PATH[i:j] (columns i to j - 1), each also with :id*N
    // (integers in [0, N)) or :id*N=TABLE (columns share a table), separated by blanks. A PATH that
    // is a group means all datasets in it, sorted by name. "": what the schema has, targets by the
    // names below where it has those. Each word may end with @SHIFT: row t has what the dataset has
    // in row t + SHIFT; or with
    // @FROM:TO, then in rows t + FROM to t + TO - 1, row by row. Where that row is not in the
    // episode numbers of frames and targets are missing (NaN), ids are 0; with :valid after the
    // shift the frame has one more number after those of each row: 1 where the row exists, else 0.
    char inputs[DT_DATA_TEXT], targets[DT_DATA_TEXT];
    // Datasets of weights, one number a frame: PATH of all heads, PATH:HEAD of one.
    char weights[DT_DATA_TEXT];
    // Names of the episodes' groups: "/subject_*/trial_*"; "": what the schema has.
    char episodes[DT_DATA_NAME];
    int64_t time_axis; // of datasets with more than one dimension: 0 or 1
    int64_t stride;    // frames from a window's start to the next one's; 0: seq_len
    bool whole; // every unit is in a window, whose last one may be short in every segment; episodes
                // need no targets
    // Reads only the episodes that /mask/NAME lists; "" reads those of the list that mask_default
    // names (train or valid) where the shard has it, else all.
    char mask[DT_DATA_NAME], mask_default[DT_DATA_NAME];
    // This share of the episodes (0: none; at most 1/2), drawn by the seed, is held out: read with
    // held_out, and left out without it.
    double val_fraction;
    bool held_out;
    uint64_t seed;
    int64_t frame_width; // of synthetic frames
    int n_targets;       // 0: as many columns as data.targets has, unchecked
    struct dt_target target[DT_TARGETS_MAX];
};

// What the frames of a dataset consist of; zeros: it has no frames.
struct dt_frame_layout {
    int64_t frame_width;  // F, of the array `frames`; ids are not among them
    int64_t target_width; // W
    int64_t weight_width; // of the array `weights`; 0: there is none
    int64_t n_ids;
    int64_t ids[DT_IDS_MAX];                // sizes of the tables
    char tables[DT_IDS_MAX][DT_TABLE_NAME]; // those of one name are one table; "": its own
    int64_t shifted;  // 1: numbers of frames may be missing (NaN), where a shift leaves the
                      // episode
    uint64_t columns; // xxh64 of the columns' names and sizes: equal in all shards
};

enum { DT_SHARD_WARNING = 320 };

// One shard's metadata: read on rank 0 without reading data (except for the fingerprint and the
// hash).
struct dt_shard {
    char *path;
    int64_t file_bytes;
    const struct dt_reader_kind *kind; // reader.h
    dt_dtype type;                     // as read: of frames fp32, else as stored
    unsigned types;                    // of frames: a bit for each dt_dtype that is stored
    int64_t count;                     // of the kind's units: tokens, rows
    int64_t windows;                   // of seq_len; 0: skipped
    int64_t stride; // units from a window's start to the next one's: T of a stream, 1 of rows
    int64_t row;    // positions per unit: 1 of tokens, T of rows
    int64_t width;  // elements per position
    struct dt_frame_layout layout;
    struct dt_byte_columns bytes; // of frames, uint8 in every episode
    int64_t episodes, empty;      // with frames, and those without any, which are skipped
    int64_t in_windows;           // frames, each as often as windows have it
    int64_t longest;              // rows of an episode's longest dataset
    int64_t unlabeled;            // frames with a target missing, once verified
    char mask[DT_DATA_NAME];      // the list in /mask that names them; "": all
    // Episodes of this shard, and of those before it: their numbers say which are held out.
    // `before` is known when the shard is opened.
    int64_t listed, before;
    int64_t vocab_size; // attribute; 0 where absent
    int64_t text_bytes; // attribute bytes: of the text that the tokens stand for; 0 where absent
    uint64_t tokenizer; // attribute tokenizer_xxh64: of its tokenizer.json; 0 where absent
    int64_t hash_block; // bytes that a stored checksum covers, the most of its kinds; 0: none
    // Bytes of compressed datasets once decoded; 0: there are none.
    int64_t chunk_bytes;      // decoded at once, the most of any
    int64_t compressed_bytes; // of all
    // The fingerprint. Tokens: the first and last checksum (xxh64 of 16 KiB, computed, where there
    // are none), the last one combined by exclusive or with the stored hash of /doc_starts; pairs:
    // xxh64 of the first row of /input_ids and of the last of /labels.
    uint64_t first_hash, last_hash;
    // xxh64 of all stored checksums or, where there are none, of the values that training reads: of
    // all, or of bytes evenly spread over them (dt_dataset_hash_bytes). 0: the kind has none.
    uint64_t data_hash;
    struct dt_file_stamp file;      // when these were computed; zeros: no file
    uint64_t links;                 // xxh64 of the stamps of the files that its links lead to
    bool doc_starts;                // has /doc_starts
    char warning[DT_SHARD_WARNING]; // what may not be as its author meant it; "": nothing
};

// Writes the types of the stored numbers as text, "fp32, uint8".
enum { DT_SHARD_TYPES = 128 };
const char *dt_shard_types(const struct dt_shard *shard, char text[DT_SHARD_TYPES]);

struct dt_dataset {
    const struct dt_reader_kind *kind; // of all shards
    struct dt_scan_rules rules;
    struct dt_frame_layout layout;
    struct dt_byte_columns bytes;                     // those of all shards; none where they differ
    char inputs[DT_DATA_TEXT], targets[DT_DATA_TEXT]; // their columns (dt_reader_kind.columns)
    int64_t n_shards;
    struct dt_shard *shards; // of source after source, each sorted bytewise by path
    int n_sources;           // 1, or those of a mixture
    struct dt_source sources[DT_SOURCES_MAX];
    struct dt_mixture mixture; // of training; n 0 until the job knows the batch, and of one source
    int64_t windows;           // of all shards
    int64_t tokens;            // positions of all shards
    int64_t episodes;          // of all shards
    int64_t in_windows;        // of all shards
    int64_t longest;           // of any shard
    bool doc_starts;           // some shard has /doc_starts
    bool may_differ;           // from the data of a checkpoint that is resumed from
};

// Rank 0: expands `glob` (the text of data.train: mixture.h; of a source several globs may be
// separated by commas, and a file that two of them match counts once, but one of two sources is an
// error; a reader kind's source such as "synthetic:random" is a shard by itself), opens and checks
// every shard (exists, HDF5, not truncated, schema, type, rank, sizes of its datasets, vocab_size
// attribute against rules->vocab_size when that is > 0, hash dataset's size and type). All wrong
// shards are named in one DT_USER error (the first 20; DT_MACHINE where one could not be read). A
// shard without a window is skipped with a warning.
dt_status dt_dataset_scan(const char *glob, const struct dt_scan_rules *rules,
                          struct dt_dataset **dataset);
void dt_dataset_free(struct dt_dataset *dataset); // NULL is fine
// The source that a shard is of.
int dt_dataset_source(const struct dt_dataset *dataset, int64_t shard);
// Convert a dataset to bytes (malloc) and back, for the broadcast to the other ranks.
dt_status dt_dataset_pack(const struct dt_dataset *dataset, void **bytes, int64_t *size);
dt_status dt_dataset_unpack(const void *bytes, int64_t size, struct dt_dataset **dataset);

// The share of the positions of windows that is data, on average: the rest of short windows is
// padding, which no throughput counts.
double dt_dataset_filled(const struct dt_dataset *dataset);

// Bytes that a process keeps of decoded chunks, besides two of each dataset.
#define DT_KEPT_CHUNK_BYTES (INT64_C(256) << 20)
// How many of these bytes it keeps for this dataset.
int64_t dt_dataset_kept_chunks(const struct dt_dataset *dataset);
// How often an epoch in shuffled blocks of `block` windows decodes a chunk of a compressed shard: 1
// where all of them are kept, else the most of any shard, *worst.
int64_t dt_dataset_decodes(const struct dt_dataset *dataset, int64_t block,
                           const struct dt_shard **worst);

// Most bytes that data_hash reads of a shard: 256 MiB, or its share of 1 GiB for all shards, but
// at least 64 KiB. A change of these, or of what is hashed, needs a new name in trainer.json.
int64_t dt_dataset_hash_bytes(const struct dt_dataset *dataset);

const char *dt_dataset_hdf5_version(void); // of the library at run time, "1.10.8"
