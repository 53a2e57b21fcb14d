// The two sides of a pack, and the shards that they are written to. A source (text and raw files, a
// task, FASTA) first says how many tokens each side gets, then appends them. Private to pack.c and
// fasta.c.
#pragma once

#include "base/clock.h"
#include "data/h5_pack.h"
#include "data/pack.h"

enum { DT_TRAIN, DT_VAL, DT_SIDES };

struct dt_pack_input {
    char *path;
    int64_t bytes;       // > 0
    int64_t train_bytes; // text and raw files: the first ones; the others are for validation
};

struct dt_pack_files {
    struct dt_pack_input *at;
    int64_t n;
    int64_t skipped; // in folders: binary, unreadable, or of another format
};

struct dt_pack_side {
    int64_t tokens; // rows where a task is packed
    int64_t n_shards;
    int64_t created;                // shards that exist under temporary names
    struct dt_shard_writer *writer; // of the shard being written
    int64_t left;                   // tokens that it still needs
};

struct dt_packer {
    const struct dt_pack_config *config;
    dt_dtype type;
    int64_t size; // bytes of a token
    struct dt_pack_files files;
    struct dt_pack_side side[DT_SIDES];
    struct dt_fasta *fasta; // of --format fasta
    char *chunk;            // [DT_PACK_CHUNK]
    int64_t *scratch;       // of a task
    int64_t largest;        // token so far
    int64_t total, done;    // bytes of files, or rows of a task
    double started, drawn;  // seconds
};

enum { DT_PACK_CHUNK = 1 << 20 };

// The next token of the side starts a document.
dt_status dt_packer_start_document(struct dt_packer *packer, int side);
dt_status dt_packer_append(struct dt_packer *packer, int side, const void *tokens, int64_t n);
// Draws the progress line, at most ten times a second.
void dt_packer_progress(struct dt_packer *packer);
// order[0, n_val) = distinct numbers below n, drawn at random: the units that are for validation,
// round(fraction * n) of n >= 2, at least one on each side. `order` has n items.
int64_t dt_packer_draw(uint64_t seed, double fraction, int64_t n, int64_t *order);

// fasta.c: the tokens of DNA, and the one that each is on the other strand.
enum { DT_DNA_VOCAB = 12 };
extern const uint8_t dt_dna_complement[DT_DNA_VOCAB];
// Reads all files once, and counts the tokens of each side.
dt_status dt_fasta_scan(struct dt_packer *packer);
dt_status dt_fasta_write(struct dt_packer *packer);
void dt_fasta_free(struct dt_fasta *fasta); // NULL is fine
