// A dataset is the shards of a glob and their metadata. Rank 0 finds and checks them; other ranks
// get a copy.
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"
#include "data/mixture.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DT_DATA_TEXT = 1024, // bytes of data.inputs etc. (base/config.h: DT_CONFIG_STRING_MAX)
    DT_DATA_NAME = 128,
    DT_IDS_MAX = 16, // columns of integers with a table
    DT_TABLE_NAME = 24,
    DT_TARGETS_MAX = 64, // heads
    DT_BYTE_RANGES = 8,
};

// Columns of frames that stay bytes until the model reads them: ascending ranges [first, end).
struct dt_byte_columns {
    int64_t n;
    struct {
        int64_t first, end;
    } at[DT_BYTE_RANGES];
};
// How many of these columns come before `column`. bytes NULL: 0.
static inline int64_t dt_bytes_before(const struct dt_byte_columns *bytes, int64_t column)
{
    int64_t n = 0;
    for (int64_t i = 0; bytes && i < bytes->n && bytes->at[i].first < column; i++)
        n += (column < bytes->at[i].end ? column : bytes->at[i].end) - bytes->at[i].first;
    return n;
}

// The targets of one head: `width` columns of the array `targets`, after those of earlier heads.
struct dt_target {
    char name[DT_DATA_NAME];
    int64_t width;
    int64_t classes; // values are in [0, classes) or DT_IGNORED (no target); 0: any finite
};

// How to read shards, from the configuration. Zeros are the defaults. No pointers, because ranks
// exchange it as bytes.
struct dt_scan_rules {
    int64_t seq_len;         // 0: any, without counting windows
    int64_t vocab_size;      // tokens; 0: any
    bool carry;              // state is carried: rows of pairs may be several windows long
    bool reverse_complement; // tokens: shards must have the attribute complement
    // Fields for frames:
    char format[DT_DATA_NAME]; // reader kind; "" or "auto": recognised by the datasets
    // Datasets of an episode, separated by blanks: PATH, PATH[i], PATH[i:j] (columns i to j - 1),
    // each also with :id*N (integers in [0, N)) or :id*N=TABLE (columns share a table). A PATH that
    // is a group means all its datasets, sorted by name. "": the schema's default. A word may end
    // with @SHIFT: row t has row t + SHIFT of the dataset; or with @FROM:TO: rows t + FROM to t +
    // TO - 1, row by row. If the episode has no such row, numbers of frames and targets are missing
    // (NaN) and ids are 0; :valid after the shift adds one number after those of each row: 1 if the
    // row exists, else 0.
    char inputs[DT_DATA_TEXT], targets[DT_DATA_TEXT];
    // Datasets of weights, one number per frame: PATH for all heads, PATH:HEAD for one.
    char weights[DT_DATA_TEXT];
    // Pattern of the episodes' groups: "/subject_*/trial_*"; "": the schema's.
    char episodes[DT_DATA_NAME];
    int64_t time_axis; // in datasets with more than one dimension: 0 or 1
    int64_t stride;    // frames from one window's start to the next; 0: seq_len
    bool whole;        // every unit is in a window, and the last window of a segment may be short;
                       // episodes need no targets
    // Reads only episodes in the list /mask/NAME. "": the list mask_default (train or valid) if the
    // shard has it, else all episodes.
    char mask[DT_DATA_NAME], mask_default[DT_DATA_NAME];
    // This share of the episodes (0 to 1/2), drawn by the seed, is held out: `held_out` reads only
    // these, otherwise they are skipped.
    double val_fraction;
    bool held_out;
    uint64_t seed;
    int64_t frame_width; // for synthetic frames
    int n_targets;       // 0: as many columns as data.targets has, unchecked
    struct dt_target target[DT_TARGETS_MAX];
};

// The layout of a dataset's frames; zeros: no frames.
struct dt_frame_layout {
    int64_t frame_width;  // F, of the array `frames`, without ids
    int64_t target_width; // W
    int64_t weight_width; // of the array `weights`; 0: none
    int64_t n_ids;
    int64_t ids[DT_IDS_MAX];                // sizes of the tables
    char tables[DT_IDS_MAX][DT_TABLE_NAME]; // equal names share a table; "": a table of its own
    int64_t shifted;  // 1: numbers may be missing (NaN), because shifts may leave the episode
    uint64_t columns; // xxh64 of the columns' names and sizes: equal in all shards
};

enum { DT_SHARD_WARNING = 320 };

// One shard's metadata. Rank 0 reads it without reading data, except for the fingerprint and the
// hash.
struct dt_shard {
    char *path;
    int64_t file_bytes;
    const struct dt_reader_kind *kind; // reader.h
    dt_dtype type;                     // as read: fp32 for frames, else as stored
    unsigned types;                    // frames: a bit for each stored dt_dtype
    int64_t count;                     // in the kind's units: tokens, rows
    int64_t windows;                   // of seq_len; 0: skipped
    int64_t stride; // units from one window's start to the next: T in a stream, 1 for rows
    int64_t row;    // positions per unit: 1 for tokens, T for rows
    int64_t width;  // elements per position
    struct dt_frame_layout layout;
    struct dt_byte_columns bytes; // columns of frames that are uint8 in every episode
    int64_t episodes, empty;      // episodes with frames; empty ones, which are skipped
    int64_t in_windows;           // frames in windows, counted once per window
    int64_t longest;              // rows of the longest dataset of any episode
    int64_t unlabeled;            // frames with a missing target; known once verified
    char mask[DT_DATA_NAME];      // the list in /mask that was used; "": all episodes
    // Episodes of this shard and of earlier shards, whose numbers decide which are held out.
    // `before` must be set when the shard is opened.
    int64_t listed, before;
    int64_t vocab_size; // attribute; 0: absent
    int64_t text_bytes; // attribute `bytes`: length of the tokenized text; 0: absent
    uint64_t tokenizer; // attribute tokenizer_xxh64: hash of tokenizer.json; 0: absent
    int64_t hash_block; // bytes per stored checksum, the largest of its kinds; 0: none
    // Decoded bytes of compressed datasets; 0: none.
    int64_t chunk_bytes;      // decoded at once, the largest of any dataset
    int64_t compressed_bytes; // in total
    // The fingerprint. Tokens: the first and last checksum (without checksums: xxh64 of 16 KiB),
    // the last one xor the stored hash of /doc_starts. Pairs: xxh64 of the first row of /input_ids
    // and of the last row of /labels.
    uint64_t first_hash, last_hash;
    // xxh64 of all stored checksums or, without checksums, of the values that training reads: of
    // all, or of evenly spread pieces (dt_dataset_hash_bytes). 0: the kind has none.
    uint64_t data_hash;
    struct dt_file_stamp file;      // the file from which these were computed; zeros: no file
    uint64_t links;                 // xxh64 of the stamps of linked files
    bool doc_starts;                // has /doc_starts
    char warning[DT_SHARD_WARNING]; // "": none
};

// Writes the types of the stored numbers as text, "fp32, uint8".
enum { DT_SHARD_TYPES = 128 };
const char *dt_shard_types(const struct dt_shard *shard, char text[DT_SHARD_TYPES]);

struct dt_dataset {
    const struct dt_reader_kind *kind; // of all shards
    struct dt_scan_rules rules;
    struct dt_frame_layout layout;
    struct dt_byte_columns bytes;                     // common to all shards; none if they differ
    char inputs[DT_DATA_TEXT], targets[DT_DATA_TEXT]; // columns (dt_reader_kind.columns)
    int64_t n_shards;
    struct dt_shard *shards; // by source, then bytewise by path
    int n_sources;           // 1, or the sources of a mixture
    struct dt_source sources[DT_SOURCES_MAX];
    struct dt_mixture mixture; // for training; n 0: one source, or the batch is not known yet
    int64_t windows;           // of all shards
    int64_t tokens;            // positions of all shards
    int64_t episodes;          // of all shards
    int64_t in_windows;        // of all shards
    int64_t longest;           // of any shard
    bool doc_starts;           // some shard has /doc_starts
    bool may_differ;           // from the data of the checkpoint to resume from
};

// Called on rank 0. Expands `glob`, the text of data.train (mixture.h): a source may have several
// globs separated by commas; a file that matches two globs of a source counts once, a file of two
// sources is an error; a reader kind's source such as "synthetic:random" is one shard. Opens and
// checks every shard: exists, HDF5, not truncated, schema, types, ranks and sizes of its datasets,
// hash dataset, vocab_size attribute against rules->vocab_size if that is > 0. One DT_USER error
// names the first 20 invalid shards (DT_MACHINE if one could not be read). Shards without a window
// are skipped with a warning.
dt_status dt_dataset_scan(const char *glob, const struct dt_scan_rules *rules,
                          struct dt_dataset **dataset);
void dt_dataset_free(struct dt_dataset *dataset); // NULL is fine
// Serialise a dataset (caller frees) and back, for the broadcast to other ranks.
dt_status dt_dataset_pack(const struct dt_dataset *dataset, void **bytes, int64_t *size);
dt_status dt_dataset_unpack(const void *bytes, int64_t size, struct dt_dataset **dataset);

// The average share of window positions that are data. The rest is padding of short windows, which
// throughput does not count.
double dt_dataset_filled(const struct dt_dataset *dataset);

// Bytes of decoded chunks that a process caches, besides two chunks per dataset.
#define DT_KEPT_CHUNK_BYTES (INT64_C(256) << 20)
// How many of these bytes it uses for this dataset.
int64_t dt_dataset_kept_chunks(const struct dt_dataset *dataset);
// How often an epoch in shuffled blocks of `block` windows decodes a chunk of a compressed shard: 1
// if all chunks are cached, else the maximum over shards, which is that of *worst.
int64_t dt_dataset_decodes(const struct dt_dataset *dataset, int64_t block,
                           const struct dt_shard **worst);

// The most bytes of a shard that data_hash reads: 256 MiB, or its share of 1 GiB for all shards,
// but at least 64 KiB. Changing these, or what is hashed, requires a new name in trainer.json.
int64_t dt_dataset_hash_bytes(const struct dt_dataset *dataset);

const char *dt_dataset_hdf5_version(void); // at run time, "1.10.8"
