// Parses the text of a mixture, turns weights into integers, and computes sources in closed form.
#include "data/mixture.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t WEIGHTS_MAX = INT64_C(1) << 40; // of the sum; products stay below 2^127
static const char hint_weights[] = "for example data.train = web/*.h5:0.7 code/*.h5:0.3, or "
                                   "epochs: web/*.h5:1e code/*.h5:2e";

// ---- the text

// The weight at the end of a word, after its last colon; NULL: none. The name of an existing file
// has no weight.
static const char *find_weight(const char *word)
{
    const char *colon = strrchr(word, ':');
    if (!colon || colon == word || dt_file_exists(word))
        return NULL;
    size_t n = strlen(colon + 1);
    return n > 0 && strspn(colon + 1, "0123456789.+-einfaEINFA") == n ? colon + 1 : NULL;
}

static bool has_weights(const char *text)
{
    char *copy = strdup(text), *rest = copy;
    bool found = false;
    for (char *word; copy && !found && (word = strsep(&rest, " \t"));)
        found = find_weight(word) != NULL;
    free(copy);
    return found;
}

static dt_status set_name(struct dt_source *source, const char *name, size_t length)
{
    if (length >= sizeof source->name)
        return DT_FAIL(DT_USER, "use a glob, or move the shards to a shorter path",
                       "%.64s…: the globs of a source have at most %d bytes", name,
                       DT_SOURCE_NAME - 1);
    snprintf(source->name, sizeof source->name, "%.*s", (int)length, name);
    return DT_OK;
}

static dt_status parse_word(char *word, struct dt_source *source)
{
    const char *weight = find_weight(word);
    char *end;
    *source = (struct dt_source){0};
    if (!weight)
        return DT_FAIL(DT_USER, hint_weights, "%s has no weight, other sources have one", word);
    source->weight = strtod(weight, &end);
    source->epochs = end != weight && strcmp(end, "e") == 0;
    if (end == weight || (*end && !source->epochs) || !isfinite(source->weight) ||
        source->weight < 0 || source->weight > 1e9)
        return DT_FAIL(DT_USER, hint_weights, "%s: '%s' is not a weight from 0 to 1e9", word,
                       weight);
    if (source->epochs && (source->weight < 1 || source->weight != floor(source->weight)))
        return DT_FAIL(DT_USER, "for a share of the windows write a weight, without e",
                       "%s: '%s' is not a whole number of epochs, 1 or more", word, weight);
    return set_name(source, word, (size_t)(weight - 1 - word));
}

static dt_status parse_words(char *rest, struct dt_source *sources, int *n)
{
    double sum = 0;
    for (char *word; (word = strsep(&rest, " \t"));) {
        if (!*word)
            continue;
        if (*n == DT_SOURCES_MAX)
            return DT_FAIL(DT_USER, "join some with commas", "a mixture has at most %d sources",
                           DT_SOURCES_MAX);
        DT_TRY(parse_word(word, &sources[*n]));
        if (sources[*n].epochs != sources[0].epochs)
            return DT_FAIL(DT_USER, hint_weights,
                           "%s: a mixture has weights, or epochs, of all its sources", word);
        sum += sources[(*n)++].weight;
    }
    if (sum <= 0)
        return DT_FAIL(DT_USER, hint_weights, "all weights of the mixture are 0");
    if (*n == 1 && sources[0].epochs)
        return DT_FAIL(DT_USER, "set run.epochs", "epochs of a single source (%s) are run.epochs",
                       sources[0].name);
    return DT_OK;
}

dt_status dt_mixture_parse(const char *text, struct dt_source *sources, int *n)
{
    char *copy;
    *n = 0;
    if (!has_weights(text)) {
        *n = 1;
        sources[0] = (struct dt_source){.weight = 1};
        return set_name(&sources[0], text, strlen(text));
    }
    DT_TRY(dt_memory_text(&copy, "%s", text));
    dt_status status = parse_words(copy, sources, n);
    free(copy);
    return status;
}

// ---- weights

static int64_t gcd(int64_t a, int64_t b)
{
    while (b > 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// The smallest power of ten that makes all weights integers; 0: none up to 10^9.
static double decimal_scale(const struct dt_source *sources, int n)
{
    for (double scale = 1; scale <= 1e9; scale *= 10) {
        bool whole = true;
        double sum = 0;
        for (int i = 0; i < n; i++) {
            double x = sources[i].weight * scale;
            whole &= fabs(x - nearbyint(x)) <= 1e-12 * x;
            sum += x;
        }
        if (whole && sum <= (double)WEIGHTS_MAX)
            return scale;
    }
    return 0;
}

dt_status dt_mixture_resolve(const struct dt_source *sources, int n, int64_t batch,
                             struct dt_mixture *mixture)
{
    int64_t *weights = mixture->phases[0].weights, divisor = 0;
    double sum = 0, scale = decimal_scale(sources, n);
    *mixture = (struct dt_mixture){0};
    if (n < 2)
        return DT_OK;
    for (int i = 0; i < n; i++) {
        double windows = sources[i].epochs ? (double)(sources[i].windows / batch) : 1;
        sum += sources[i].weight * windows;
    }
    for (int i = 0; i < n; i++) {
        const struct dt_source *source = &sources[i];
        double exact = source->epochs ? source->weight * (double)(source->windows / batch)
                       : scale > 0    ? source->weight * scale
                                      : source->weight / sum * 1e12;
        if (source->weight > 0 && source->windows < batch)
            return DT_FAIL(DT_USER,
                           "use more data, a shorter data.seq_len, a smaller data.batch, "
                           "or join it with another source by a comma",
                           "the source %s has %" PRId64 " windows, a batch needs %" PRId64,
                           source->name, source->windows, batch);
        if (source->epochs && sum > (double)WEIGHTS_MAX)
            return DT_FAIL(DT_USER, "give fewer epochs", "the epochs of the mixture are too many");
        weights[i] = (int64_t)llround(exact);
        if (weights[i] == 0 && source->weight > 0)
            return DT_FAIL(DT_USER, "raise it, or leave the source out",
                           "the weight %g of %s is less than 1e-12 of all", source->weight,
                           source->name);
        divisor = gcd(divisor, weights[i]);
    }
    for (int i = 0; i < n; i++)
        weights[i] /= divisor;
    mixture->n = n;
    mixture->n_phases = 1;
    return DT_OK;
}

int64_t dt_mixture_epoch_steps(const struct dt_source *sources, int n, int64_t batch)
{
    int64_t windows = 0, steps = 0;
    for (int i = 0; i < n; i++) {
        windows += sources[i].windows;
        steps += (int64_t)sources[i].weight * (sources[i].windows / batch);
    }
    return n > 1 && sources[0].epochs ? steps : windows / batch;
}

double dt_mixture_share(const struct dt_mixture *mixture, int64_t step, int i)
{
    int p = mixture->n_phases - 1;
    double sum = 0;
    while (p > 0 && mixture->phases[p].from > step)
        p--;
    for (int j = 0; j < mixture->n; j++)
        sum += (double)mixture->phases[p].weights[j];
    return (double)mixture->phases[p].weights[i] / sum;
}

// ---- phases

dt_status dt_mixture_continue(const struct dt_mixture *saved, int64_t from, int64_t step,
                              struct dt_mixture *now)
{
    const struct dt_mixture_phase next = {.from = from};
    struct dt_mixture merged = *saved;
    struct dt_mixture_phase *last = &merged.phases[merged.n_phases - 1];
    const size_t bytes = sizeof last->weights;
    if (memcmp(last->weights, now->phases[0].weights, bytes) == 0 &&
        (from == last->from || from == 0)) {
        *now = merged;
        return DT_OK;
    }
    if (from == 0)
        return DT_FAIL(DT_USER,
                       "restore them, or set data.mixture_from to the number of steps after which "
                       "the new ones count",
                       "data.train has other weights than the checkpoint");
    if (from < step)
        return DT_FAIL(DT_USER, "give the checkpoint's step or a later one",
                       "data.mixture_from is %" PRId64 ", but the checkpoint has trained %" PRId64
                       " steps by its own weights",
                       from, step);
    while (merged.n_phases > 0 && merged.phases[merged.n_phases - 1].from >= from)
        merged.n_phases--; // drop a phase that has not begun
    if (merged.n_phases == DT_MIXTURE_PHASES)
        return DT_FAIL(DT_USER, "start a new run with run.init_from",
                       "the weights of a mixture change at most %d times", DT_MIXTURE_PHASES - 1);
    last = &merged.phases[merged.n_phases++];
    *last = next;
    memcpy(last->weights, now->phases[0].weights, bytes);
    *now = merged;
    return DT_OK;
}

dt_status dt_mixture_text(const struct dt_mixture *mixture, const int64_t *shards,
                          char text[DT_MIXTURE_TEXT])
{
    bool fits = true;
    text[0] = 0;
    for (int i = 0; i < mixture->n; i++)
        fits &= dt_append(text, DT_MIXTURE_TEXT, "%s%" PRId64, i ? " " : "shards ", shards[i]);
    for (int p = 0; p < mixture->n_phases; p++) {
        fits &= dt_append(text, DT_MIXTURE_TEXT, ", from %" PRId64 ":", mixture->phases[p].from);
        for (int i = 0; i < mixture->n; i++)
            fits &= dt_append(text, DT_MIXTURE_TEXT, " %" PRId64, mixture->phases[p].weights[i]);
    }
    return fits ? DT_OK
                : DT_FAIL(DT_USER, "give weights of fewer digits, or fewer sources",
                          "the weights of the mixture do not fit in trainer.json");
}

// Parses numbers separated by blanks up to the end or a comma. Returns their number, at most
// `most`; -1 if there are more, or other characters.
static int read_numbers(const char **at, int64_t *list, int most)
{
    int n = 0;
    for (char *end; **at && **at != ','; *at = end) {
        errno = 0;
        long long value = strtoll(*at, &end, 10);
        if (end == *at || errno || value < 0 || value > WEIGHTS_MAX || n == most)
            return -1;
        list[n++] = value;
    }
    return n;
}

static bool read_text(const char *at, struct dt_mixture *mixture, int64_t *shards)
{
    static const char first[] = "shards", next[] = ", from ";
    if (strncmp(at, first, strlen(first)) != 0)
        return false;
    at += strlen(first);
    mixture->n = read_numbers(&at, shards, DT_SOURCES_MAX);
    while (mixture->n >= 2 && mixture->n_phases < DT_MIXTURE_PHASES &&
           strncmp(at, next, strlen(next)) == 0) {
        struct dt_mixture_phase *phase = &mixture->phases[mixture->n_phases];
        int64_t sum = 0;
        char *end;
        phase->from = strtoll(at + strlen(next), &end, 10);
        at = end + 1;
        if (*end != ':' || read_numbers(&at, phase->weights, DT_SOURCES_MAX) != mixture->n)
            return false;
        for (int i = 0; i < mixture->n; i++)
            sum += phase->weights[i];
        bool rises = mixture->n_phases == 0 ? phase->from == 0 : phase->from > phase[-1].from;
        if (sum < 1 || sum > WEIGHTS_MAX || !rises)
            return false;
        mixture->n_phases++;
    }
    return mixture->n_phases > 0 && *at == 0;
}

dt_status dt_mixture_read(const char *text, struct dt_mixture *mixture, int64_t *shards)
{
    *mixture = (struct dt_mixture){0};
    if (!text[0] || read_text(text, mixture, shards))
        return DT_OK;
    return DT_FAIL(DT_USER, NULL, "'%s' is not a mixture", text);
}

// ---- which source

struct dt_mixer {
    const struct dt_mixture *mixture;
    int64_t batch;
    uint32_t *places; // [n - 1, batch]: of the node whose right half begins at source i + 1
};

static const uint64_t PLACES_STREAM = UINT64_C(1) << 48;

dt_status dt_mixer_create(const struct dt_mixture *mixture, uint64_t seed, int64_t batch,
                          struct dt_mixer **mixer)
{
    struct dt_mixer *m;
    *mixer = NULL;
    DT_TRY(DT_NEW(&m, 1, "a mixture"));
    *m = (struct dt_mixer){.mixture = mixture, .batch = batch};
    if (DT_NEW_HINT(&m->places, (mixture->n - 1) * batch, "lower data.batch",
                    "%" PRId64 " slots of a mixture", batch) != DT_OK) {
        free(m);
        return DT_MACHINE;
    }
    for (int node = 1; node < mixture->n; node++) {
        uint32_t *places = m->places + (node - 1) * batch;
        for (int64_t k = 0; k < batch; k++)
            places[k] = (uint32_t)k;
        struct dt_philox rng = dt_philox_init(seed, 0, PLACES_STREAM + (uint64_t)node);
        dt_philox_shuffle(&rng, places, batch);
    }
    *mixer = m;
    return DT_OK;
}

void dt_mixer_free(struct dt_mixer *mixer)
{
    if (mixer)
        free(mixer->places);
    free(mixer);
}

static int64_t sum_of(const int64_t *weights, int first, int end)
{
    int64_t sum = 0;
    for (int i = first; i < end; i++)
        sum += weights[i];
    return sum;
}

// How many of a node's m windows its left half gets.
static int64_t left_of(int64_t m, int64_t left, int64_t all, int64_t place, int64_t batch)
{
    typedef unsigned __int128 wide;
    wide parts = (wide)all * (wide)(2 * batch);
    wide sum = (wide)m * (wide)left * (wide)(2 * batch) + (wide)(2 * place + 1) * (wide)all;
    return all > 0 ? (int64_t)(sum / parts) : 0;
}

// Divides m windows of this slot among sources [first, end), adding to their counts.
static void divide(const struct dt_mixer *mixer, const int64_t *weights, int first, int end,
                   int64_t slot, int64_t m, int64_t *count)
{
    if (end - first == 1) {
        count[first] += m;
        return;
    }
    int half = first + (end - first) / 2;
    int64_t left = left_of(m, sum_of(weights, first, half), sum_of(weights, first, end),
                           mixer->places[(half - 1) * mixer->batch + slot], mixer->batch);
    divide(mixer, weights, first, half, slot, left, count);
    divide(mixer, weights, half, end, slot, m - left, count);
}

void dt_mixer_count(const struct dt_mixer *mixer, int64_t step, int64_t slot, int64_t *before)
{
    const struct dt_mixture *mixture = mixer->mixture;
    memset(before, 0, (size_t)mixture->n * sizeof *before);
    for (int p = 0; p < mixture->n_phases && mixture->phases[p].from < step; p++) {
        bool last = p == mixture->n_phases - 1 || mixture->phases[p + 1].from > step;
        int64_t end = last ? step : mixture->phases[p + 1].from;
        divide(mixer, mixture->phases[p].weights, 0, mixture->n, slot,
               end - mixture->phases[p].from, before);
    }
}

int dt_mixer_at(const struct dt_mixer *mixer, int64_t step, int64_t slot, int64_t *before)
{
    int64_t now[DT_SOURCES_MAX], next[DT_SOURCES_MAX];
    int source = 0;
    dt_mixer_count(mixer, step, slot, now);
    dt_mixer_count(mixer, step + 1, slot, next);
    while (now[source] == next[source])
        source++;
    *before = now[source];
    return source;
}
