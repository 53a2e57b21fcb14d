// Finds the known name that a user most likely meant by an unknown one. Offer candidates, then read
// `best` and `names`, or ask for a suggestion to end a message with.
#pragma once

enum { DT_NEAREST_WORD = 128 };

struct dt_nearest {
    const char *word;
    int distance;               // of best: letters to change
    char best[DT_NEAREST_WORD]; // "": nothing is near
    char names[512];            // all that were offered: "a, b, c"
    char question[DT_NEAREST_WORD + 32];
};

struct dt_nearest dt_nearest_to(const char *word); // borrowed
void dt_nearest_offer(struct dt_nearest *nearest, const char *candidate);
// ": did you mean 'X'?", or "" where nothing is near.
const char *dt_nearest_suggest(struct dt_nearest *nearest);
