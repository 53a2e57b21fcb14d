// Columns of frames and targets, as named by data.inputs and data.targets (dataset.h:
// dt_scan_rules), and conversion of stored numbers to floats and ids.
#pragma once

#include "data/dataset.h"

enum {
    DT_COLUMN_PATH = 256,
    DT_SHIFTS_MOST = 4096,
    DT_COLUMNS_MOST = 4096, // datasets per frame
};

// Columns [first, end) of one dataset of an episode. Row t of the frames has them from dataset rows
// t + from, …, t + to - 1 in this order: all columns of one word of the key (a path that is a group
// gives several) from the first of these rows, then from the next.
struct dt_column {
    char path[DT_COLUMN_PATH];  // "obs/a", within the episode; "obs/@unit", "@label"
    bool attribute;             // `path` names an attribute: "obs/@unit"
    int64_t first, end;         // end -1: all
    int64_t table;              // ids: integers in [0, table); 0: floats
    char shared[DT_TABLE_NAME]; // name of the ids' table; "": a table of their own
    int64_t from, to;           // 0, 1: row t itself
    bool target, weight;
    bool valid;   // inputs: each row's numbers are followed by 1 if the row exists, else 0
    int64_t word; // index of the word that names the column
    // Known with the shard:
    int64_t width;    // of the dataset
    int64_t at, step; // position in a row of frames, ids or targets; distance to that of the next
                      // shift. Weights: 0 for all heads, 1 + k for head k
    int64_t flag, flag_step; // position and distance of the flags, in a row of frames
    bool longer;             // the dataset has one row more than the episode has frames
    bool bytes;              // uint8 in every episode, and not shifted
};
static inline bool dt_column_is_shifted(const struct dt_column *column)
{
    return column->from != 0 || column->to != 1;
}

struct dt_columns {
    int64_t n;
    struct dt_column *at; // malloc
};

// Appends the columns that `text`, the value of `key`, names (dataset.h: dt_scan_rules).
dt_status dt_columns_parse(const char *key, const char *text, bool target,
                           struct dt_columns *columns);
// Appends the columns of rules->weights, for the heads of the rules.
dt_status dt_columns_parse_weights(const struct dt_scan_rules *rules, struct dt_columns *columns);
// Writes the columns of inputs or targets as resolved words: "obs/a[0:3] obs/b[0:1]:id*7
// actions[0:7]@-1:valid". False: they do not fit.
bool dt_columns_text(const struct dt_columns *columns, bool target, char text[DT_DATA_TEXT]);
// Rewrites the value of a key to a canonical form: "a@+1" for "/a@1", and "a" for "a@0". A text
// that cannot be parsed, or would become too long, is unchanged.
void dt_columns_tidy(bool target, char text[DT_DATA_TEXT]);
// The same for data.weights ("a b[2]:HEAD" for " /a[0] b[2:3]:HEAD") and data.episodes ("a/b" for
// "/a//b/").
void dt_columns_tidy_weights(char text[DT_DATA_TEXT]);
void dt_columns_tidy_groups(char *pattern);
// Whether a column of the same row occurs in both texts; which: "actions[3]@+1".
bool dt_columns_meet(const char *inputs, const char *targets, char which[DT_COLUMN_PATH + 64]);
// Writes the words of such a text that lie outside every episode, the longest of which has `rows`
// rows: "a[0:2]@+40". Returns whether these are all words.
bool dt_columns_beyond(const char *text, bool target, int64_t rows, char which[DT_DATA_TEXT]);
// Inputs that are targets of earlier frames (feedback). n numbers or ids from column `at` on, or a
// flag (:valid), are the n targets from `target` on that were predicted `back` frames before;
// columns from at + step on are those of back - 1 frames before, …, `count` times. In a chunk of
// targets the first row counts.
enum { DT_FED_MOST = 64 };
struct dt_fed {
    enum dt_fed_array { DT_FED_FRAMES, DT_FED_IDS, DT_FED_FLAG } array;
    int64_t at, step, n, target, back, count;
};
// Finds such inputs; none if the texts do not name all columns.
dt_status dt_columns_fed(const char *inputs, const char *targets, int *n,
                         struct dt_fed fed[DT_FED_MOST]);
// Targets are a chunk if the text has the same number of successive rows for each column. Returns
// that number, or 1 if the columns differ or the text does not name all n. next[i] is the index of
// target i one row later, or i in the last row.
int64_t dt_columns_chunk(const char *targets, int64_t n, int64_t *next);
dt_status dt_columns_add(struct dt_columns *columns, const struct dt_column *column);
// Assigns positions in rows of frames, ids and targets to columns, all of which have an end, and to
// their flags. Adds to the widths of the layout.
void dt_columns_place(struct dt_columns *columns, struct dt_frame_layout *layout);
void dt_columns_free(struct dt_columns *columns);

// Converts columns [first, first + n) of `rows` rows of `width` numbers into rows of `stride`
// floats. An integer beyond 2^24 is rounded.
void dt_columns_to_floats(dt_dtype type, const void *from, int64_t rows, int64_t width,
                          int64_t first, int64_t n, float *to, int64_t stride);
// Converts columns to ids. Returns the index (row * n + column) of the first value outside [0,
// table), stored in *wrong (DT_U64: its bits), or -1.
int64_t dt_columns_to_ids(dt_dtype type, const void *from, int64_t rows, int64_t width,
                          int64_t first, int64_t n, int64_t table, int32_t *to, int64_t stride,
                          int64_t *wrong);
// Value i of an integer type; for DT_U64 its bits.
int64_t dt_columns_integer(dt_dtype type, const void *from, int64_t i);
// Formats such a value as decimal text.
enum { DT_INTEGER_TEXT = 24 };
const char *dt_columns_integer_text(dt_dtype type, int64_t bits, char text[DT_INTEGER_TEXT]);
static inline bool dt_columns_is_integer(dt_dtype type)
{
    return type >= DT_U8 && type < DT_DTYPE_COUNT;
}
