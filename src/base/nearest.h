// Finds the known name that a user most likely meant by an unknown one. Offer candidates, then read
// `best` and `names`, or append the suggestion to a message.
#pragma once

enum { DT_NEAREST_WORD = 128 };

struct dt_nearest {
    const char *word;
    int distance;               // letters to change from word to best
    char best[DT_NEAREST_WORD]; // "": no name is near
    char names[512];            // all candidates: "a, b, c"
    char question[DT_NEAREST_WORD + 32];
};

struct dt_nearest dt_nearest_to(const char *word); // borrowed
void dt_nearest_offer(struct dt_nearest *nearest, const char *candidate);
// ": did you mean 'X'?", or "" if no name is near.
const char *dt_nearest_suggest(struct dt_nearest *nearest);
