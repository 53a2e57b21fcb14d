// Columns of frames and targets are named by data.inputs and data.targets (dataset.h:
// dt_scan_rules). Numbers of any stored type are converted to floats and ids here.
#pragma once

#include "data/dataset.h"

enum { DT_COLUMN_PATH = 256, DT_SHIFTS_MOST = 4096 };

// Columns [first, end) of one dataset of an episode. Row t of the frames has those of its rows
// t + from, …, t + to - 1, in this order: the columns that one word of the key names (several where
// its path is a group) of the first of these rows, then all of the next.
struct dt_column {
    char path[DT_COLUMN_PATH];  // "obs/a", within the episode; "obs/@unit", "@label"
    bool attribute;             // … one of these: an attribute
    int64_t first, end;         // end -1: all
    int64_t table;              // ids: integers in [0, table); 0: floats
    char shared[DT_TABLE_NAME]; // … in a table of this name; "": in their own
    int64_t from, to;           // 0, 1: its own row
    bool target, weight;
    bool valid;   // of inputs: after the word's numbers of each row 1 where it exists, else 0
    int64_t word; // equal in the columns of a word
    // Known with the shard:
    int64_t width;    // of the dataset
    int64_t at, step; // place in a row of frames, ids or targets; from it to that of the next
                      // shift. Of weights known from the start: 0 of all heads, 1 + k of head k
    int64_t flag, flag_step; // the same of the flags, in a row of frames
    bool longer;             // the dataset has one row more than the episode has frames
    bool bytes;              // uint8 in every episode, not shifted
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
// Appends those of rules->weights, for the heads of the rules.
dt_status dt_columns_parse_weights(const struct dt_scan_rules *rules, struct dt_columns *columns);
// Writes the columns of inputs, or of targets, as words that mean the same once their datasets are
// known: "obs/a[0:3] obs/b[0:1]:id*7 actions[0:7]@-1:valid". False: they do not fit.
bool dt_columns_text(const struct dt_columns *columns, bool target, char text[DT_DATA_TEXT]);
// Rewrites the value of a key so that two texts that mean the same are equal: "a@+1" for "/a@1",
// and "a" for "a@0". A text that is not understood, or would become too long, stays as it is.
void dt_columns_tidy(bool target, char text[DT_DATA_TEXT]);
// Likewise data.weights ("a b[2]:HEAD" for " /a[0]  b[2:3]:HEAD"), and data.episodes ("a/b" for
// "/a//b/").
void dt_columns_tidy_weights(char text[DT_DATA_TEXT]);
void dt_columns_tidy_groups(char *pattern);
// Whether a column is among both, of the same row, in such texts; which: "actions[3]@+1".
bool dt_columns_meet(const char *inputs, const char *targets, char which[DT_COLUMN_PATH + 64]);
// Writes what of such a text lies outside every episode, the longest of which has `rows` rows:
// "a[0:2]@+40". Returns whether that is all of it.
bool dt_columns_beyond(const char *text, bool target, int64_t rows, char which[DT_DATA_TEXT]);
// Inputs that are targets of earlier frames: n numbers or ids from column `at` on, or a flag
// (:valid), are n targets from `target` on that were predicted `back` frames before; those from
// column at + step on back - 1 frames before, …, `count` times. Of a chunk of targets its first row
// counts.
enum { DT_FED_MOST = 64 };
struct dt_fed {
    enum dt_fed_array { DT_FED_FRAMES, DT_FED_IDS, DT_FED_FLAG } array;
    int64_t at, step, n, target, back, count;
};
// Finds them in such texts; where these do not say all columns there are none.
dt_status dt_columns_fed(const char *inputs, const char *targets, int *n,
                         struct dt_fed fed[DT_FED_MOST]);
// Targets are a chunk if such a text has as many rows in succession of each column: returns that
// number, 1 where the columns differ in it or the text does not say all n of them. next[i] is then
// the place of target i a row later; of the last row it is i.
int64_t dt_columns_chunk(const char *targets, int64_t n, int64_t *next);
dt_status dt_columns_add(struct dt_columns *columns, const struct dt_column *column);
void dt_columns_free(struct dt_columns *columns);

// Converts columns [first, first + n) of `rows` rows of `width` numbers into rows of `stride`
// floats. An integer beyond 2^24 is rounded.
void dt_columns_to_floats(dt_dtype type, const void *from, int64_t rows, int64_t width,
                          int64_t first, int64_t n, float *to, int64_t stride);
// Converts them into ids. Returns the number (row * n + column) of the first outside [0, table),
// whose value is *wrong (of DT_U64 its bits), or -1.
int64_t dt_columns_to_ids(dt_dtype type, const void *from, int64_t rows, int64_t width,
                          int64_t first, int64_t n, int64_t table, int32_t *to, int64_t stride,
                          int64_t *wrong);
// Value i of an integer type; of DT_U64 its bits.
int64_t dt_columns_integer(dt_dtype type, const void *from, int64_t i);
// Decimal text of such a value.
enum { DT_INTEGER_TEXT = 24 };
const char *dt_columns_integer_text(dt_dtype type, int64_t bits, char text[DT_INTEGER_TEXT]);
static inline bool dt_columns_is_integer(dt_dtype type)
{
    return type >= DT_U8 && type < DT_DTYPE_COUNT;
}
