// A mixture trains windows of several sources by weights. Which source a slot reads at a step is a
// pure function of step, slot and seed, which needs no history and no communication.
//
// The text of data.train, "web/*.h5:0.7 code/*.h5:0.3": words separated by blanks, each a source:
// its globs, separated by commas, then a colon and its weight, or ":2e": how many epochs of it one
// epoch of the mixture has. A text whose words have neither is one source, whatever blanks are in
// it. Weights become whole numbers w_i: the given ones times a power of ten, or epochs times the
// source's steps in one epoch, without their common divisors.
//
// The list of sources is halved again and again. A node of this tree, sources [a, b), gets m
// windows of a slot's first t (the root: m = t). Its left half [a, c), c = a + floor((b - a) / 2),
// gets
//   floor(m · (w_a + … + w_{c-1}) / (w_a + … + w_{b-1}) + (2 p + 1) / (2 batch))
// of them, the right half the rest; p is the slot's place in the permutation of slots (Fisher-Yates
// from Philox stream (seed, 0, 2^48 + c)). A leaf's m says how many windows of its source the slot
// reads before step t: the next one is that of the order within the source (order.h). Of two
// sources the counts of a whole batch, over any number of steps, are within one window of the
// weights, those of one slot within one; of more sources each level of the tree adds as much.
//
// A later phase replaces the weights from its step `from` on; what each slot has read before that
// step follows from the earlier phases.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { DT_SOURCES_MAX = 32, DT_MIXTURE_PHASES = 8, DT_SOURCE_NAME = 1024, DT_MIXTURE_TEXT = 1024 };

struct dt_source {
    char name[DT_SOURCE_NAME]; // its globs
    double weight;             // as given; 1 where the text has none
    bool epochs;               // the weight is a number of epochs
    int64_t first_shard, n_shards;
    int64_t windows, tokens; // of all its shards
};

struct dt_mixture {
    int n, n_phases; // sources; n 0: there is one source, and no mixture
    struct dt_mixture_phase {
        int64_t from; // step, from 0
        int64_t weights[DT_SOURCES_MAX];
    } phases[DT_MIXTURE_PHASES];
};

// Reads a text into sources; without weights it is one. DT_USER, which names the word: a weight
// that is negative or no number, none above 0, weights and epochs or words without either side by
// side, epochs that are not whole, more than DT_SOURCES_MAX sources.
dt_status dt_mixture_parse(const char *text, struct dt_source *sources, int *n);
// The mixture of sources whose windows are counted, of one phase. DT_USER: a source that is read
// has fewer windows than a batch.
dt_status dt_mixture_resolve(const struct dt_source *sources, int n, int64_t batch,
                             struct dt_mixture *mixture);
// Steps of an epoch: as many windows as the sources have or, with epochs, as these ask for.
int64_t dt_mixture_epoch_steps(const struct dt_source *sources, int n, int64_t batch);
// Continues `saved` with the weights of `now` from step `from` on (0: they must be those of saved's
// last phase). `step`: steps done, which keep their order. DT_USER where that is not possible.
dt_status dt_mixture_continue(const struct dt_mixture *saved, int64_t from, int64_t step,
                              struct dt_mixture *now);
// For trainer.json: "shards 3 2, from 0: 7 3, from 5000: 1 1" (the sources' numbers of shards, then
// the phases), and back. `shards` [n]. DT_USER where the text is too long, or is not one.
dt_status dt_mixture_text(const struct dt_mixture *mixture, const int64_t *shards,
                          char text[DT_MIXTURE_TEXT]);
dt_status dt_mixture_read(const char *text, struct dt_mixture *mixture, int64_t *shards);
// The share of source i in the phase that step is in.
double dt_mixture_share(const struct dt_mixture *mixture, int64_t step, int i);

// The permutations of slots: 4 bytes for each slot and source.
struct dt_mixer;
dt_status dt_mixer_create(const struct dt_mixture *mixture, uint64_t seed, int64_t batch,
                          struct dt_mixer **mixer); // `mixture` is borrowed
void dt_mixer_free(struct dt_mixer *mixer);         // NULL is fine
// The source that a slot reads at a step; *before: how many windows of it this slot has read.
int dt_mixer_at(const struct dt_mixer *mixer, int64_t step, int64_t slot, int64_t *before);
// How many windows of each source a slot has read before a step, into before[n].
void dt_mixer_count(const struct dt_mixer *mixer, int64_t step, int64_t slot, int64_t *before);
