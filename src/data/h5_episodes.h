// Shared by reader kinds of episodes: columns, windows, blocks, checks of values. Such a kind has a
// schema, which says where the episodes of a file are (dt_reader_kind.schema), and the functions of
// DT_EPISODES_FUNCTIONS. h5_episodes.c opens a shard, h5_episode_columns.c finds its columns,
// h5_episode_rows.c reads rows of values and makes windows of them.
//
// The frames of a shard are numbered through all its episodes in order. A window is up to seq_len
// frames of one episode. Window k of an episode starts at its frame k * stride. The last window is
// the first that reaches the end of the episode or, if stride > seq_len, the last that starts in
// it; it may be short.
//
// Arrays, each only if it has columns: frames [T, F] rules->frames_type; bytes [T, …] u8, the
// columns rules->bytes of the frames; ids [T, n_ids] i32; targets [T, W] f32 (NaN: missing);
// weights [T, 1 + H] f32 (the frame's weight, then its product with the weight of each of the H
// heads); mask [T] u8 (0: padding, where all arrays are zero); with rules->carry reset [T] u8 (1:
// an episode starts).
#pragma once

#include "data/columns.h"
#include "data/h5_reader.h"

struct dt_episodes;

struct dt_episode_schema {
    const char *inputs, *targets; // defaults of data.inputs and data.targets; "": required
    bool by_head;                 // `targets` is a group with one dataset per head
    const char *longer[2];        // path prefixes of datasets that have one row more than others
    // Pattern of the episodes' groups (h5_groups.c), which data.episodes replaces; "": the file is
    // one episode. NULL: episodes share datasets, and `list` adds them in order.
    const char *groups;
    dt_status (*list)(struct dt_reader *reader, struct dt_episodes *episodes);
};

// Adds the episode that starts at row `first` of shared datasets; `first` must not decrease.
dt_status dt_episodes_add_start(struct dt_episodes *episodes, int64_t first);

// Private to h5_episode*.c.

struct dt_episode {
    char *group; // "/data/demo_3"; "": the root; NULL: episodes share datasets
    // If the group is a link to another file: that file and the path in it; else NULL.
    const struct dt_h5_file *file;
    char *inner;
    int64_t row;    // first row in its datasets
    int64_t first;  // first frame, as numbered in the shard
    int64_t window; // first window, as numbered in the shard
};

// A dataset of an episode after it was opened and checked. If contiguous, it is read without
// opening it again.
struct dt_episode_place {
    int64_t offset; // 0: must be opened
    dt_dtype type;
    int64_t rows, outer; // as in dt_h5_array
    bool constant;       // as in dt_h5_array
};

// Another file that links of a shard lead to.
struct dt_other_file {
    char path[DT_PATH];
    struct dt_h5_file file;
};

struct dt_episodes {
    struct dt_scan_rules rules;
    int64_t n_others;
    struct dt_other_file **others; // [n_others]
    struct dt_frame_layout layout;
    struct dt_columns columns;
    unsigned types; // a bit for each stored type
    char warning[DT_SHARD_WARNING];
    char mask[DT_DATA_NAME]; // the list of episodes used; "": all
    int64_t n, empty;
    struct dt_episode *at;           // [n + 1]; the last marks the end of all
    struct dt_episode_place *places; // [n, columns.n]; NULL: episodes share datasets
    struct dt_h5_array *arrays; // [columns.n] [columns.n] of the episode `open`, or shared by all
    char (*paths)[DT_H5_PATH];  // [columns.n] of the arrays
    int64_t open;               // -1: none
};

// h5_groups.c: adds the episodes whose groups match a pattern ("/data/demo_*"; "": the file is one
// episode), in natural order, or those of a list in /mask.
dt_status dt_groups_list(const struct dt_reader *reader, const char *pattern,
                         struct dt_episodes *episodes);
// *found: whether the file has such a group.
dt_status dt_groups_has(const struct dt_h5_file *file, const char *pattern, bool *found);
dt_status dt_episodes_add_group(const struct dt_reader *reader, struct dt_episodes *episodes,
                                const char *group);

// h5_episode_columns.c. The file that contains an episode.
const struct dt_h5_file *dt_episodes_file(const struct dt_reader *reader,
                                          const struct dt_episode *at);
// The path "/data/demo_3/obs/a" for an episode, or "/obs/a" if episodes share datasets; "../" leads
// to the episode's parent group.
dt_status dt_episodes_path(const struct dt_reader *reader, const struct dt_episode *at,
                           const char *path, char full[DT_H5_PATH]);
// Reports that the dataset or attribute `full`, named by `key`, does not exist.
dt_status dt_episodes_missing(const struct dt_h5_file *file, const char *key, const char *full);
const char *dt_episodes_key(const struct dt_column *column); // the key that names the column
// Lists the columns of the first episode.
dt_status dt_episodes_list_columns(const struct dt_reader *reader, struct dt_episodes *episodes);
// Assigns columns to positions in rows, and fills the layout, from the datasets of the open
// episode.
dt_status dt_episodes_place_columns(struct dt_reader *reader);
// Checks that the heads use all columns of the targets, and each head those of its dataset if it
// has one.
dt_status dt_episodes_check_targets(const struct dt_reader *reader,
                                    const struct dt_episodes *episodes);
struct dt_byte_columns dt_episodes_list_bytes(const struct dt_episodes *episodes);

// How many rows of a column's dataset belong to an episode.
int64_t dt_episodes_rows(const struct dt_episodes *episodes, int64_t number,
                         const struct dt_column *column);
// Opens the datasets of an episode if necessary.
dt_status dt_episodes_switch(struct dt_reader *reader, int64_t number);

// The functions of a reader kind.
dt_status dt_episodes_open(struct dt_reader *reader, const struct dt_scan_rules *rules,
                           struct dt_shard *shard);
void dt_episodes_close(struct dt_reader *reader);
dt_status dt_episodes_fingerprint(struct dt_reader *reader, struct dt_shard *shard);
dt_status dt_episodes_hash(struct dt_reader *reader, const struct dt_shard *shard, int64_t bytes,
                           uint64_t *hash);
dt_status dt_episodes_verify(struct dt_reader *reader, struct dt_shard *shard, int64_t first,
                             int64_t n);
void dt_episodes_arrays(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                        struct dt_array_list *list);
int64_t dt_episodes_block_bytes(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                                const struct dt_shard *shard, int64_t windows);
dt_status dt_episodes_read(struct dt_reader *reader, const struct dt_dataset *dataset,
                           const struct dt_read_rules *rules, struct dt_block *block);
dt_status dt_episodes_write(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                            const struct dt_block *block, int64_t window, void *const *rows);
dt_status dt_episodes_numbers(struct dt_reader *reader, enum dt_numbers which, int64_t first,
                              int64_t n, float *numbers);
bool dt_episodes_segment(struct dt_reader *reader, const struct dt_shard *shard, int64_t number,
                         struct dt_segment *segment);
void dt_episodes_columns(const struct dt_reader *reader, char inputs[DT_DATA_TEXT],
                         char targets[DT_DATA_TEXT]);
void dt_episodes_place(struct dt_reader *reader, int64_t window, char *text, size_t size);

#define DT_EPISODES_FUNCTIONS                                                                      \
    .unit = "frames", .open = dt_episodes_open, .close = dt_episodes_close,                        \
    .fingerprint = dt_episodes_fingerprint, .hash = dt_episodes_hash,                              \
    .verify = dt_episodes_verify, .arrays = dt_episodes_arrays,                                    \
    .block_bytes = dt_episodes_block_bytes, .read = dt_episodes_read, .write = dt_episodes_write,  \
    .numbers = dt_episodes_numbers, .segment = dt_episodes_segment,                                \
    .columns = dt_episodes_columns, .place = dt_episodes_place
