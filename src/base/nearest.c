// Finds the nearest candidate by edit distance.
#include "base/nearest.h"

#include "base/text.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 63 }; // bytes; longer words have no near name

static int lower(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

// Number of insertions, deletions, substitutions and swaps of neighbours that turn a into b,
// ignoring case (optimal string alignment). Keeps three rows of the table.
static int edit_distance(const char *a, const char *b)
{
    int rows[3][LONGEST + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = rows[i % 3], *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int differ = lower(a[i - 1]) != lower(b[j - 1]);
            int beside = before[j] < now[j - 1] ? before[j] : now[j - 1];
            now[j] = before[j - 1] + differ <= beside ? before[j - 1] + differ : beside + 1;
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]) && earlier[j - 2] + 1 < now[j])
                now[j] = earlier[j - 2] + 1;
        }
    }
    return rows[n % 3][m];
}

struct dt_nearest dt_nearest_to(const char *word)
{
    return (struct dt_nearest){.word = word, .distance = INT_MAX};
}

void dt_nearest_offer(struct dt_nearest *nearest, const char *candidate)
{
    size_t length = strlen(candidate);
    int distance;
    dt_append(nearest->names, sizeof nearest->names, "%s%s", nearest->names[0] ? ", " : "",
              candidate);
    if (strlen(nearest->word) > LONGEST || length > LONGEST)
        return;
    distance = edit_distance(nearest->word, candidate);
    if (distance > (int)(length + 2) / 3 || distance >= nearest->distance)
        return; // more than a third differs: hardly what the user meant
    nearest->distance = distance;
    snprintf(nearest->best, sizeof nearest->best, "%s", candidate);
}

const char *dt_nearest_suggest(struct dt_nearest *nearest)
{
    if (nearest->best[0])
        snprintf(nearest->question, sizeof nearest->question, ": did you mean '%s'?",
                 nearest->best);
    return nearest->question;
}
