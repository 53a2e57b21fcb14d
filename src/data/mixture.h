// A mixture trains windows of several sources by weights. Which source a slot reads at a step is a
// pure function of step, slot and seed, without history or communication.
//
// The text of data.train, "web/*.h5:0.7 code/*.h5:0.3": words separated by blanks, one per source:
// its globs, separated by commas, then a colon and either its weight or, as ":2e", how many epochs
// of it one epoch of the mixture has. A text without colons is one source, even with blanks.
// Weights become integers w_i: the given weights times a power of ten, or epochs times the source's
// steps per epoch, divided by their greatest common divisor.
//
// The list of sources is halved recursively. A node of this tree, sources [a, b), gets m of a
// slot's first t windows (the root: m = t). Its left half [a, c), c = a + floor((b - a) / 2), gets
//   floor(m · (w_a + … + w_{c-1}) / (w_a + … + w_{b-1}) + (2 p + 1) / (2 batch))
// of them, the right half the rest; p is the slot's place in the permutation of slots (Fisher-Yates
// from Philox stream (seed, 0, 2^48 + c)). A leaf's m is the number of windows of its source that
// the slot reads before step t; which window comes next is the order within the source (order.h).
// With two sources the counts of a batch, and of a slot, over any number of steps are within one
// window of the weights; each further level of the tree adds one window.
//
// A later phase replaces the weights from its step `from` on; the earlier phases determine what
// each slot has read before.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { DT_SOURCES_MAX = 32, DT_MIXTURE_PHASES = 8, DT_SOURCE_NAME = 1024, DT_MIXTURE_TEXT = 1024 };

struct dt_source {
    char name[DT_SOURCE_NAME]; // its globs
    double weight;             // as given; default 1
    bool epochs;               // the weight is a number of epochs
    int64_t first_shard, n_shards;
    int64_t windows, tokens; // total over its shards
};

struct dt_mixture {
    int n, n_phases; // sources; n 0: one source, no mixture
    struct dt_mixture_phase {
        int64_t from; // step, from 0
        int64_t weights[DT_SOURCES_MAX];
    } phases[DT_MIXTURE_PHASES];
};

// Parses a text into sources; without weights it is one source. DT_USER, naming the word: a weight
// that is negative or not a number, no weight above 0, a mix of weights, epochs and words without
// either, fractional epochs, more than DT_SOURCES_MAX sources.
dt_status dt_mixture_parse(const char *text, struct dt_source *sources, int *n);
// Makes a mixture of one phase from sources whose windows are counted. DT_USER: a source with
// weight has fewer windows than a batch.
dt_status dt_mixture_resolve(const struct dt_source *sources, int n, int64_t batch,
                             struct dt_mixture *mixture);
// Steps of an epoch, which has as many windows as the sources or, with epochs, as these require.
int64_t dt_mixture_epoch_steps(const struct dt_source *sources, int n, int64_t batch);
// Continues `saved` with the weights of `now` from step `from` on (0: they must equal those of the
// last phase). `step`: steps done, whose order must not change. DT_USER if that is impossible.
dt_status dt_mixture_continue(const struct dt_mixture *saved, int64_t from, int64_t step,
                              struct dt_mixture *now);
// Formats and parses the text in trainer.json: "shards 3 2, from 0: 7 3, from 5000: 1 1" (number of
// shards per source, then the phases). `shards` [n]. DT_USER if the text is too long or invalid.
dt_status dt_mixture_text(const struct dt_mixture *mixture, const int64_t *shards,
                          char text[DT_MIXTURE_TEXT]);
dt_status dt_mixture_read(const char *text, struct dt_mixture *mixture, int64_t *shards);
// The share of source i in the phase of a step.
double dt_mixture_share(const struct dt_mixture *mixture, int64_t step, int i);

// The permutations of slots: 4 bytes per slot and source.
struct dt_mixer;
dt_status dt_mixer_create(const struct dt_mixture *mixture, uint64_t seed, int64_t batch,
                          struct dt_mixer **mixer); // `mixture` is borrowed
void dt_mixer_free(struct dt_mixer *mixer);         // NULL is fine
// The source that a slot reads at a step; *before: how many of its windows the slot has read
// before.
int dt_mixer_at(const struct dt_mixer *mixer, int64_t step, int64_t slot, int64_t *before);
// How many windows of each source a slot has read before a step, into before[n].
void dt_mixer_count(const struct dt_mixer *mixer, int64_t step, int64_t slot, int64_t *before);
