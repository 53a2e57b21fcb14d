// Packs DNA in FASTA files: letters are tokens of the vocabulary published by HyenaDNA and
// Caduceus, and a sequence (or a BED interval of it) is a document. Files are read twice, with one
// sequence in memory at a time: first to count the tokens of each side, then to write them.
//
//   0 [CLS]  1 [SEP]  2 [BOS]  3 [MASK]  4 [PAD]  5 [RESERVED]  6 [UNK]  7 A  8 C  9 G  10 T  11 N
//
// U is read as T; the codes of ambiguous letters (R, Y, S, W, K, M, B, D, H, V) become [UNK].
#include "data/packer.h"

#include "base/file.h"
#include "base/list.h"
#include "base/memory.h"
#include "base/problems.h"
#include "base/round.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <unistd.h>
#include <zlib.h>

enum { UNKNOWN = 6, A, C, G, T, N, BAD, BLANK, BED_LIMIT = 1 << 30, NAME = 256 };
enum { ANY = -2, NEITHER = -1 }; // sides of a unit: drawn later, omitted

const uint8_t dt_dna_complement[DT_DNA_VOCAB] = {0, 1, 2, 3, 4, 5, UNKNOWN, T, G, C, A, N};

// A sequence, or an interval of it, whose documents are all on one side.
struct unit {
    int64_t tokens; // counted by the first pass and not yet written by the second
    int side;
};

struct interval {
    char *name; // of the sequence
    int64_t first, end, line;
    int side;
    bool found;
};

struct dt_fasta {
    uint8_t codes[256];         // token of each letter
    struct interval *intervals; // sorted by name, then by line
    int64_t n_intervals;
    struct unit *units;    // in the order of sequences
    int64_t n_units, next; // next: the unit being read
    bool writing;
    int64_t cut, written; // cut >= 0: the first `cut` tokens of a single unit are for training
    // The sequence being read:
    const char *path;
    int64_t line;
    char name[NAME];
    bool named;       // its header was read
    uint8_t *letters; // [room] codes
    int64_t n_letters, room;
};

static void fill_codes(struct dt_fasta *fasta, bool mask)
{
    memset(fasta->codes, BAD, sizeof fasta->codes);
    for (const char *c = "ACGTURYSWKMBDHVN"; *c; c++) {
        const char *known = strchr("ACGTN", *c == 'U' ? 'T' : *c);
        uint8_t code = known ? (uint8_t)(A + (known - "ACGTN")) : UNKNOWN;
        fasta->codes[(uint8_t)*c] = code;
        fasta->codes[tolower(*c)] = mask ? N : code;
    }
    for (const char *c = " \t\r"; *c; c++)
        fasta->codes[(uint8_t)*c] = BLANK;
}

// ---- BED: "NAME FIRST END [SIDE]", first from 0, end exclusive

static int find_side(const char *word)
{
    static const struct {
        const char *name;
        int side;
    } sides[] = {{"train", DT_TRAIN}, {"valid", DT_VAL}, {"validation", DT_VAL},
                 {"val", DT_VAL},     {"dev", DT_VAL},   {"test", NEITHER}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        if (strcmp(word, sides[i].name) == 0)
            return sides[i].side;
    return ANY;
}

static dt_status add_interval(struct dt_fasta *fasta, const char *path, int64_t number, char *line)
{
    char *rest, *words[4] = {NULL};
    int n = 0;
    for (char *word = strtok_r(line, " \t\r", &rest); word && n < 4;
         word = strtok_r(NULL, " \t\r", &rest))
        words[n++] = word;
    if (n == 0 || words[0][0] == '#' || strcmp(words[0], "track") == 0 ||
        strcmp(words[0], "browser") == 0)
        return DT_OK;
    struct interval interval = {.line = number, .side = n > 3 ? find_side(words[3]) : ANY};
    char *first_end = NULL, *end_end = NULL;
    if (n >= 3) {
        interval.first = strtoll(words[1], &first_end, 10);
        interval.end = strtoll(words[2], &end_end, 10);
    }
    if (n < 3 || *first_end || *end_end || interval.first < 0 || interval.end <= interval.first)
        return DT_FAIL(DT_USER, "write NAME FIRST END, the first base being 0 and END exclusive",
                       "%s:%" PRId64 ": not an interval of a sequence", path, number);
    DT_TRY(dt_list_grow(&fasta->intervals, fasta->n_intervals, sizeof interval));
    DT_TRY(dt_memory_text(&interval.name, "%s", words[0]));
    fasta->intervals[fasta->n_intervals++] = interval;
    return DT_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

// The fourth column is a side if it names one in every line, and ignored if it does in none.
static dt_status read_bed(struct dt_fasta *fasta, const char *path)
{
    char *text, *rest;
    int64_t size, number = 0, first[2] = {0, 0}; // first line without and with a side
    DT_TRY(dt_read_file(path, BED_LIMIT, &text, &size));
    dt_status status = DT_OK;
    for (char *line = text; line && status == DT_OK; line = rest) {
        rest = strchr(line, '\n');
        if (rest)
            *rest++ = '\0';
        status = add_interval(fasta, path, ++number, line);
    }
    free(text);
    DT_TRY(status);
    for (int64_t i = fasta->n_intervals - 1; i >= 0; i--)
        first[fasta->intervals[i].side != ANY] = fasta->intervals[i].line;
    if (first[0] > 0 && first[1] > 0)
        return DT_FAIL(DT_USER, "give each interval train, valid or test, or none of them",
                       "%s: line %" PRId64 " names a side, line %" PRId64 " does not", path,
                       first[1], first[0]);
    if (fasta->n_intervals == 0)
        return DT_FAIL(DT_USER, "write NAME FIRST END, an interval a line", "%s has no intervals",
                       path);
    qsort(fasta->intervals, (size_t)fasta->n_intervals, sizeof *fasta->intervals, by_name);
    return DT_OK;
}

static dt_status check_found(const struct dt_fasta *fasta, const char *path)
{
    struct dt_problems problems = {0};
    for (int64_t i = 0; i < fasta->n_intervals; i++)
        if (!fasta->intervals[i].found)
            dt_problems_add(&problems, "line %" PRId64 ": %.200s", fasta->intervals[i].line,
                            fasta->intervals[i].name);
    return dt_problems_report(&problems, "take names from the '>' lines, up to the first blank",
                              "no sequence has the name that %s gives", path);
}

// ---- documents

// Counts, or writes, one document of the unit.
static dt_status add_document(struct dt_packer *packer, struct unit *unit, const uint8_t *letters,
                              int64_t n)
{
    struct dt_fasta *fasta = packer->fasta;
    if (!fasta->writing) {
        unit->tokens += n;
        return DT_OK;
    }
    unit->tokens -= n;
    if (unit->tokens < 0)
        return DT_FAIL(DT_USER, "pack again, when nothing writes to it",
                       "%s changed while it was packed", fasta->path);
    while (n > 0 && unit->side != NEITHER) {
        bool split = fasta->written < fasta->cut;
        int side = fasta->cut < 0 ? unit->side : split ? DT_TRAIN : DT_VAL;
        int64_t some = split ? dt_min_i64(n, fasta->cut - fasta->written) : n;
        DT_TRY(dt_packer_start_document(packer, side));
        DT_TRY(dt_packer_append(packer, side, letters, some));
        fasta->written += some;
        letters += some;
        n -= some;
    }
    return DT_OK;
}

// A run of more than max_n Ns is omitted: a document ends before it and the next starts after it.
static dt_status add_unit(struct dt_packer *packer, int side, const uint8_t *letters, int64_t n)
{
    struct dt_fasta *fasta = packer->fasta;
    if (!fasta->writing) {
        DT_TRY(dt_list_grow(&fasta->units, fasta->n_units, sizeof *fasta->units));
        fasta->units[fasta->n_units++] = (struct unit){.side = side};
    } else if (fasta->next == fasta->n_units) {
        return DT_FAIL(DT_USER, "pack again, when nothing writes to it",
                       "%s changed while it was packed", fasta->path);
    }
    struct unit *unit = &fasta->units[fasta->next++];
    for (int64_t start = 0, end = 0, after = 0; end < n;) {
        const uint8_t *next = memchr(letters + after, N, (size_t)(n - after));
        end = next ? next - letters : n;
        for (after = end; after < n && letters[after] == N;)
            after++;
        if (end < n && after - end <= packer->config->max_n)
            continue;
        if (end > start)
            DT_TRY(add_document(packer, unit, letters + start, end - start));
        start = after;
    }
    return DT_OK;
}

static dt_status end_sequence(struct dt_packer *packer)
{
    struct dt_fasta *fasta = packer->fasta;
    int64_t n = fasta->n_letters, low = 0, high = fasta->n_intervals;
    if (!fasta->named)
        return DT_OK;
    fasta->named = false;
    fasta->n_letters = 0;
    if (fasta->n_intervals == 0)
        return add_unit(packer, ANY, fasta->letters, n);
    while (low < high) { // find the first interval with that name
        int64_t middle = low + (high - low) / 2;
        if (strcmp(fasta->intervals[middle].name, fasta->name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < fasta->n_intervals && strcmp(fasta->intervals[low].name, fasta->name) == 0;
         low++) {
        struct interval *interval = &fasta->intervals[low];
        if (interval->end > n)
            return DT_FAIL(DT_USER, "are the intervals those of another assembly?",
                           "%s:%" PRId64 ": %s ends at %" PRId64 ", %s has %" PRId64 " bases of it",
                           packer->config->bed, interval->line, interval->name, interval->end,
                           fasta->path, n);
        if (interval->found && !fasta->writing)
            return DT_FAIL(DT_USER, "pack files whose sequences have different names",
                           "%s: a second sequence %s, which %s:%" PRId64 " names", fasta->path,
                           fasta->name, packer->config->bed, interval->line);
        interval->found = true;
        DT_TRY(add_unit(packer, interval->side, fasta->letters + interval->first,
                        interval->end - interval->first));
    }
    return DT_OK;
}

// ---- reading

static dt_status reserve(struct dt_fasta *fasta, int64_t more)
{
    int64_t room = fasta->room;
    if (more == 0)
        return DT_OK;
    while (room < fasta->n_letters + more)
        room = room > 0 ? 2 * room : DT_PACK_CHUNK;
    uint8_t *letters = room > fasta->room ? realloc(fasta->letters, (size_t)room) : fasta->letters;
    if (!letters)
        return DT_FAIL(DT_MACHINE, "a sequence must fit into memory as a whole",
                       "no memory for %" PRId64 " letters of %s", room, fasta->path);
    fasta->letters = letters;
    fasta->room = room;
    return DT_OK;
}

// Processes a line without its newline; "" between sequences is fine.
static dt_status read_line(struct dt_packer *packer, const uint8_t *line, int64_t n)
{
    struct dt_fasta *fasta = packer->fasta;
    if (n > 0 && line[0] == '>') {
        DT_TRY(end_sequence(packer));
        int length = 0;
        while (length < n - 1 && length < NAME - 1 && line[1 + length] > ' ')
            length++;
        snprintf(fasta->name, NAME, "%.*s", length, (const char *)line + 1);
        fasta->named = true;
        return DT_OK;
    }
    DT_TRY(reserve(fasta, n));
    uint8_t *to = fasta->letters + fasta->n_letters;
    for (int64_t i = 0; i < n; i++) {
        uint8_t code = fasta->codes[line[i]];
        if (code == BAD || (code != BLANK && !fasta->named))
            return fasta->named ? DT_FAIL(DT_USER,
                                          "only DNA is read: A, C, G, T, U, N and codes of "
                                          "ambiguous bases",
                                          isprint(line[i]) ? "%s:%" PRId64 ": '%c' is no base"
                                                           : "%s:%" PRId64 ": byte %d is no base",
                                          fasta->path, fasta->line, line[i])
                                : DT_FAIL(DT_USER, "a FASTA file starts with '>' and a name",
                                          "%s:%" PRId64 ": a line before the first '>'",
                                          fasta->path, fasta->line);
        *to = code;
        to += code != BLANK;
    }
    fasta->n_letters = to - fasta->letters;
    return DT_OK;
}

// Reads a possibly compressed file line by line. Lines may be longer than the buffer.
static dt_status read_lines(struct dt_packer *packer, gzFile file)
{
    struct dt_fasta *fasta = packer->fasta;
    uint8_t *buffer = (uint8_t *)packer->chunk;
    bool header = false; // the buffer starts inside a header whose name was read
    int64_t kept = 0, begun = packer->done;
    for (int read = 1; read > 0;) {
        read = gzread(file, buffer + kept, (unsigned)(DT_PACK_CHUNK - kept));
        if (read < 0)
            return DT_OK; // the caller checks for errors
        int64_t n = kept + read, at = 0;
        while (at < n) {
            const uint8_t *end = memchr(buffer + at, '\n', (size_t)(n - at));
            int64_t length = (end ? end - buffer : n) - at;
            bool is_header = buffer[at] == '>' && !header;
            if (!end && read > 0 && is_header && at > 0)
                break; // an incomplete header: read more
            if (!header)
                DT_TRY(read_line(packer, buffer + at, length));
            header = !end && (header || is_header);
            fasta->line += end != NULL;
            at += length + (end != NULL);
        }
        kept = n - at;
        memmove(buffer, buffer + at, (size_t)kept);
        packer->done = begun + gzoffset(file);
        dt_packer_progress(packer);
    }
    return end_sequence(packer);
}

static dt_status read_file(struct dt_packer *packer, const struct dt_pack_input *input)
{
    int64_t bytes;
    int fd, code;
    DT_TRY(dt_open_read(input->path, &fd, &bytes));
    gzFile file = gzdopen(fd, "rb");
    if (!file) {
        close(fd);
        return DT_FAIL(DT_MACHINE, NULL, "no memory for reading %s", input->path);
    }
    packer->fasta->path = input->path;
    packer->fasta->line = 1;
    int64_t begun = packer->done;
    dt_status status = read_lines(packer, file);
    const char *why = gzerror(file, &code);
    if (status == DT_OK && code == Z_ERRNO)
        status = DT_FAIL_ERRNO("read", input->path);
    else if (status == DT_OK && code < 0)
        status = DT_FAIL(DT_USER, "the file is cut or damaged: copy it again, and try gzip -t",
                         "%s: cannot decompress it%s", input->path,
                         strchr(why, ':') ? strrchr(why, ':') : "");
    gzclose(file);
    packer->done = begun + bytes;
    return status;
}

static dt_status read_all(struct dt_packer *packer)
{
    packer->fasta->next = 0;
    for (int64_t i = 0; i < packer->files.n; i++)
        DT_TRY(read_file(packer, &packer->files.at[i]));
    return DT_OK;
}

// Draws the side of each unit whose interval names none; a single unit is cut, and its tail is for
// validation.
static dt_status choose_sides(struct dt_packer *packer)
{
    struct dt_fasta *fasta = packer->fasta;
    double fraction = packer->config->val_fraction;
    int64_t *order, n = 0, n_val = 0;
    DT_TRY(DT_NEW(&order, 2 * fasta->n_units + 1, "the order of sequences"));
    int64_t *full = order + fasta->n_units; // units that have tokens
    for (int64_t i = 0; i < fasta->n_units; i++)
        if (fasta->units[i].side == ANY) {
            fasta->units[i].side = DT_TRAIN;
            if (fasta->units[i].tokens > 0)
                full[n++] = i;
        }
    if (n > 1 && fraction > 0)
        n_val = dt_packer_draw(packer->config->seed, fraction, n, order);
    for (int64_t i = 0; i < n_val; i++)
        fasta->units[full[order[i]]].side = DT_VAL;
    for (int64_t i = 0; i < fasta->n_units; i++)
        if (fasta->units[i].side != NEITHER)
            packer->side[fasta->units[i].side].tokens += fasta->units[i].tokens;
    if (n == 1) {
        int64_t val = (int64_t)(fraction * (double)packer->side[DT_TRAIN].tokens);
        fasta->cut = packer->side[DT_TRAIN].tokens -= val;
        packer->side[DT_VAL].tokens = val;
    }
    free(order);
    return DT_OK;
}

dt_status dt_fasta_scan(struct dt_packer *packer)
{
    const struct dt_pack_config *config = packer->config;
    struct dt_fasta *fasta;
    DT_TRY(DT_NEW(&fasta, 1, "reading FASTA"));
    packer->fasta = fasta;
    fasta->cut = -1;
    fill_codes(fasta, config->mask);
    if (config->bed)
        DT_TRY(read_bed(fasta, config->bed));
    for (int64_t i = 0; i < packer->files.n; i++)
        packer->total += 2 * packer->files.at[i].bytes;
    DT_TRY(read_all(packer));
    if (config->bed)
        DT_TRY(check_found(fasta, config->bed));
    DT_TRY(choose_sides(packer));
    if (packer->side[DT_TRAIN].tokens + packer->side[DT_VAL].tokens == 0)
        return DT_FAIL(DT_USER, "name files with sequences; a lower --max-n leaves out more Ns",
                       "%s%s: nothing but N to pack", packer->files.at[0].path,
                       packer->files.n > 1 ? " …" : "");
    return DT_OK;
}

dt_status dt_fasta_write(struct dt_packer *packer)
{
    struct dt_fasta *fasta = packer->fasta;
    fasta->writing = true;
    DT_TRY(read_all(packer));
    for (int64_t i = 0; i < fasta->n_units; i++)
        if (fasta->units[i].tokens != 0)
            return DT_FAIL(DT_USER, "pack again, when nothing writes to them",
                           "the FASTA files changed while they were packed");
    return DT_OK;
}

void dt_fasta_free(struct dt_fasta *fasta)
{
    for (int64_t i = 0; fasta && i < fasta->n_intervals; i++)
        free(fasta->intervals[i].name);
    if (fasta) {
        free(fasta->intervals);
        free(fasta->units);
        free(fasta->letters);
    }
    free(fasta);
}
