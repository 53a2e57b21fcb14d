// The two sides of a pack, training and validation, and the shards being written. A source (text
// and raw files, a task, FASTA) first counts the tokens of each side, then appends them. Private to
// pack.c and fasta.c.
#pragma once

#include "base/clock.h"
#include "data/h5_pack.h"
#include "data/pack.h"

enum { DT_TRAIN, DT_VAL, DT_SIDES };

struct dt_pack_input {
    char *path;
    int64_t bytes;       // > 0
    int64_t train_bytes; // text and raw files: the first bytes; the rest is for validation
};

struct dt_pack_files {
    struct dt_pack_input *at;
    int64_t n;
    int64_t skipped; // files skipped in folders: binary, unreadable, or of another format
};

struct dt_pack_side {
    int64_t tokens; // tokens, or rows of a task
    int64_t n_shards;
    int64_t created;                // shards that exist under temporary names
    struct dt_shard_writer *writer; // for the current shard
    int64_t left;                   // tokens that the current shard still needs
};

struct dt_packer {
    const struct dt_pack_config *config;
    dt_dtype type;
    int64_t size; // bytes of a token
    struct dt_pack_files files;
    struct dt_pack_side side[DT_SIDES];
    struct dt_fasta *fasta; // for --format fasta
    char *chunk;            // [DT_PACK_CHUNK]
    int64_t *scratch;       // of a task
    int64_t largest;        // largest token so far
    int64_t total, done;    // in bytes of files, or rows of a task
    double started, drawn;  // seconds
};

enum { DT_PACK_CHUNK = 1 << 20 };

// Marks the side's next token as the start of a document.
dt_status dt_packer_start_document(struct dt_packer *packer, int side);
dt_status dt_packer_append(struct dt_packer *packer, int side, const void *tokens, int64_t n);
// Draws the progress line, at most ten times per second.
void dt_packer_progress(struct dt_packer *packer);
// Draws the units for validation: order[0, n_val) are distinct random numbers below n, n_val =
// round(fraction * n) with at least one unit on each side, n >= 2. `order` has n items. Returns
// n_val.
int64_t dt_packer_draw(uint64_t seed, double fraction, int64_t n, int64_t *order);

// fasta.c: the tokens of DNA, and the complement of each.
enum { DT_DNA_VOCAB = 12 };
extern const uint8_t dt_dna_complement[DT_DNA_VOCAB];
// Reads all files once and counts the tokens of each side.
dt_status dt_fasta_scan(struct dt_packer *packer);
dt_status dt_fasta_write(struct dt_packer *packer);
void dt_fasta_free(struct dt_fasta *fasta); // NULL is fine
