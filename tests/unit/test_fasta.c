// Tests DNA: which letters of FASTA files become which tokens, documents and sides, what is
// refused, and that a window of the other strand is the reverse complement with the same documents.
#include "base/log.h"
#include "captured.h"
#include "data/loader.h"
#include "packed.h"

#include <sys/syscall.h>
#include <time.h>
#include <zlib.h>

#define LETTERS "0123456ACGTN" // a letter for each token; 6: unknown

static const char *file_of(const char *name, const char *text)
{
    const char *path = in_scratch("%s", name);
    put_text(path, text);
    return path;
}

static dt_status pack_dna(struct dt_pack_config config, const char *input,
                          struct dt_pack_result *result)
{
    const char *inputs[] = {input};
    config.format = DT_PACK_FASTA;
    config.inputs = inputs;
    config.n_inputs = 1;
    config.force = true;
    config.output = in_scratch("dna");
    config.shard_bytes = config.shard_bytes ? config.shard_bytes : 1 << 20;
    return dt_pack(&config, result);
}

static void test_letters(void)
{
    static const struct {
        const char *text;
        int64_t max_n;
        bool mask;
        const char *want;
    } cases[] = {
        {">a\nACGTN\n", 1, false, "|ACGTN"},
        {"\n>a text\nACgt\r\nun\r\n\r\n>b\nRYSWKMBDHV\nt", 1, false, "|ACGTTN|6666666666T"},
        {">a\nACgtAC\n", 1, true, "|AC|AC"},
        {">a\nACgtAC\n", 2, true, "|ACNNAC"},
        {">a\nNNANNN\nNNCNNGNN\n", 2, false, "|NNA|CNNGNN"},
        {">a\nNNNANNNCNNNN\n>b\nNNN\n>c\n>d\nG", 2, false, "|A|C|G"},
        {">a\nNA\nCN\n", 0, false, "|AC"},
    };
    struct dt_pack_result result;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_pack_config config = {.max_n = cases[i].max_n, .mask = cases[i].mask};
        CHECK_OK(pack_dna(config, file_of("a.fa", cases[i].text), &result));
        CHECK_INT(result.vocab_size, 12);
        CHECK_STR(read_side_as(LETTERS, in_scratch("dna"), "train", 1), cases[i].want);
    }
    struct dt_pack_config config = {.max_n = 9, .shard_bytes = 4}; // documents cross shards
    CHECK_OK(pack_dna(config, file_of("a.fa", ">a\nACGTT\n>b\nGG\n"), &result));
    CHECK_STR(read_side_as(LETTERS, in_scratch("dna"), "train", 2), "|ACGTT|GG");
}

// Lines and headers that begin or end anywhere near the end of the buffer of 2^20 bytes, compressed
// or not.
static void test_long(void)
{
    enum { NEAR = 1 << 20, NAME = NEAR + 999 };
    struct dt_pack_result result;
    static char text[NEAR + NAME + 100];
    put_text(in_scratch("long.bed"), "bb 0 1\nbb 1 2\nc 0 2\na 0 9\n");
    for (int shift = -3; shift <= 5; shift++) {
        int at = NEAR + shift, n = sprintf(text, ">a\n");
        memset(text + n, 'A', (size_t)(at - n));
        text[at - 1] = '\n';
        n = at + sprintf(text + at, ">bb C\nGT\n>c ");
        memset(text + n, 'G', NAME);
        strcpy(text + n + NAME, "\nTT\n");
        for (int gzip = 0; gzip < 2; gzip++) {
            const char *path = in_scratch(gzip ? "long.fa.gz" : "long.fa");
            struct dt_pack_config config = {.shard_bytes = 1 << 22};
            if (gzip) {
                gzFile file = gzopen(path, "wb1");
                CHECK_INT(gzwrite(file, text, (unsigned)strlen(text)), (int)strlen(text));
                gzclose(file);
            } else {
                put_text(path, text);
            }
            CHECK_OK(pack_dna(config, path, &result));
            CHECK_INT(result.train_tokens, at - 4 + 2 + 2);
            config.bed = in_scratch("long.bed");
            CHECK_OK(pack_dna(config, path, &result));
            CHECK_STR(read_side_as(LETTERS, in_scratch("dna"), "train", 1), "|AAAAAAAAA|G|T|TT");
        }
        strcpy(text + n + NAME, "\nTT\nL\n");
        CHECK_FAILS(pack_dna((struct dt_pack_config){0}, file_of("long.fa", text), &result),
                    DT_USER, "long.fa:7: 'L'");
    }
}

static double hurry; // seconds that every reading of the clock adds

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static double ahead;
    int code = (int)syscall(SYS_clock_gettime, clock, time);
    ahead += hurry;
    time->tv_sec += (time_t)ahead;
    return code;
}

// The progress of each line is at least that of the line before, and the last is 100 %.
static void test_progress(void)
{
    struct dt_pack_result result;
    char text[4096] = ">a\n";
    for (int i = 0; i < 60; i++)
        strcat(text, "ACGTACGTACGTACGTACGTACGTACGTACGTACGTACGTACGTACGTACGTACGT\n");
    const char *inputs[] = {file_of("progress.fa", text), file_of("more.fa", text)};
    dt_log_assume_terminal();
    static const enum dt_pack_format formats[] = {DT_PACK_TEXT, DT_PACK_U8, DT_PACK_FASTA};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        double last = 0, part;
        struct dt_pack_config config = {.format = formats[i],
                                        .inputs = inputs,
                                        .n_inputs = 2,
                                        .output = in_scratch("dna"),
                                        .shard_bytes = 1 << 20,
                                        .force = true,
                                        .progress = true};
        capture_stderr();
        hurry = 1;
        CHECK_OK(dt_pack(&config, &result));
        hurry = 0;
        for (const char *at = captured(); (at = strstr(at, "] ")); at += 2) {
            CHECK(sscanf(at, "] %lf %%", &part) == 1 && part >= last && part <= 100,
                  "%g %% after %g %%", part, last);
            last = part;
        }
        CHECK(last == 100, "progress of format %d ends at %g %%", (int)formats[i], last);
    }
}

static const char *const four = ">w\nAACC\n>x more\nGGTTA\n>y\nCCC\n>z\nT\n";

static void test_sides(void)
{
    struct dt_pack_result result;
    const char *bed = in_scratch("a.bed");
    // Half of four sequences are for validation. Of a single sequence, its end is.
    struct dt_pack_config config = {.val_fraction = 0.5, .seed = 5};
    CHECK_OK(pack_dna(config, file_of("a.fa", four), &result));
    char all[64];
    strcpy(all, read_side_as(LETTERS, in_scratch("dna"), "train", 1));
    strcat(all, read_side_as(LETTERS, in_scratch("dna"), "val", 1));
    CHECK_INT(strlen(all), 4 + 13);
    for (const char *const *part = (const char *const[]){"|AACC", "|GGTTA", "|CCC", "|T", NULL};
         *part; part++)
        CHECK(strstr(all, *part), "%s is not whole in %s", *part, all);
    config.val_fraction = 0.25;
    CHECK_OK(pack_dna(config, file_of("a.fa", ">a\nACGTNNNNGG\n"), &result));
    CHECK_STR(read_side_as(LETTERS, in_scratch("dna"), "train", 1), "|ACGT|G");
    CHECK_STR(read_side_as(LETTERS, in_scratch("dna"), "val", 1), "|G");

    // Intervals may overlap and may be in any order.
    config.bed = bed;
    put_text(bed, "# a comment\ntrack x\nx\t3\t5\tvalid\nw 0 3 train\nw\t1\t4\ttrain\r\n"
                  "z\t0\t1\ttest\n\nx 0 1 val\n");
    CHECK_OK(pack_dna(config, file_of("a.fa", four), &result));
    CHECK_STR(read_side_as(LETTERS, in_scratch("dna"), "train", 1), "|AAC|ACC");
    CHECK_STR(read_side_as(LETTERS, in_scratch("dna"), "val", 1), "|TA|G");
    put_text(bed, "w 0 2 peak1\nx 4 5\n");
    CHECK_OK(pack_dna(config, file_of("a.fa", four), &result));
    CHECK_INT(result.train_tokens + result.val_tokens, 3);
    CHECK(result.val_tokens > 0 && result.train_tokens > 0, "a side is empty");
}

static void test_refused(void)
{
    static const struct {
        const char *text, *bed, *phrase;
    } cases[] = {
        {">a\nAC\nAL\n", NULL, "a.fa:3: 'L' is no base"},
        {">a\nAC\n\xc3\n", NULL, "a.fa:3: byte 195 is no base"},
        {"ACGT\n", NULL, "a.fa:1: a line before the first '>'"},
        {">a\nNNN\n>b\n", NULL, "a.fa: nothing but N to pack"},
        {">a\nA\n", "a 0\n", "a.bed:1: not an interval"},
        {">a\nA\n", "\na 1 1\n", "a.bed:2: not an interval"},
        {">a\nA\n", "a -1 1\n", "a.bed:1: not an interval"},
        {">a\nA\n", "a 0 1x\n", "a.bed:1: not an interval"},
        {">a\nA\n", "# none\n", "a.bed has no intervals"},
        {">a\nAC\n", "a 0 1 train\na 1 2\n", "line 1 names a side, line 2 does not"},
        {">a\nAC\n", "a 0 3\n", "a.bed:1: a ends at 3, "},
        {">a\nAC\n>a\nAC\n", "a 0 2\n", "a second sequence a, which "},
        {">a\nAC\n", "a 0 2\nb 0 1\nab 0 1\n", "line 3: ab\n  line 2: b"},
    };
    struct dt_pack_result result;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_pack_config config = {.bed = cases[i].bed ? in_scratch("a.bed") : NULL};
        if (config.bed)
            put_text(config.bed, cases[i].bed);
        CHECK_FAILS(pack_dna(config, file_of("a.fa", cases[i].text), &result), DT_USER,
                    cases[i].phrase);
    }
    gzFile file = gzopen(in_scratch("cut.fa.gz"), "wb");
    gzputs(file, four);
    gzclose(file);
    CHECK(truncate(in_scratch("cut.fa.gz"), 30) == 0, "not cut");
    CHECK_FAILS(pack_dna((struct dt_pack_config){0}, in_scratch("cut.fa.gz"), &result), DT_USER,
                "cut.fa.gz: cannot decompress it: unexpected end of file");
}

// ---- the other strand

enum { T = 7, BASES = 40 * T + 1, BATCH = 8 };

static uint8_t bases[BASES]; // tokens
static bool starts[BASES];

static void write_genome(void)
{
    char text[4 * BASES], *to = text;
    struct dt_pack_result result;
    for (int p = 0; p < BASES; p++) {
        starts[p] = p == 0 || p % 11 == 3 || p % 14 == 0;
        if (starts[p])
            to += sprintf(to, ">%d\n", p);
        *to++ = "ACGTR"[(p * p / 3 + p) % 5];
        bases[p] = (uint8_t)(strchr(LETTERS, to[-1] == 'R' ? '6' : to[-1]) - LETTERS);
        *to++ = '\n';
    }
    *to = 0;
    CHECK_OK(pack_dna((struct dt_pack_config){0}, file_of("g.fa", text), &result));
    CHECK_INT(result.train_tokens, BASES);
}

static int complement(int token)
{
    const char *at = token >= 7 && token < 11 ? strchr("ATCGA", LETTERS[token]) : NULL;
    return at ? (int)(strchr(LETTERS, at[LETTERS[token] == 'T' || LETTERS[token] == 'G' ? -1 : 1]) -
                      LETTERS)
              : token;
}

// Whether a row is the window at base `from` on this strand.
static bool is_row(const int32_t *ids, const int32_t *labels, const uint8_t *reset, int from,
                   bool reversed)
{
    bool same = true;
    for (int t = 0; t <= T; t++) {
        int p = from + (reversed ? T - t : t);
        int want = reversed ? complement(bases[p]) : bases[p];
        bool start = reversed ? t > 0 && starts[p + 1] : starts[p];
        same &= t == T || (ids[t] == want && reset[t] == start);
        same &= t == 0 || labels[t - 1] == want;
    }
    return same;
}

// Finds for each row of steps [first, n) which window on which strand it is, and stores the number
// 2 · window + strand.
static void read_strands(int size, int rank, int64_t first, int64_t n, int strands[][BATCH])
{
    struct dt_loader_config config = {
        .dataset = scan(in_scratch("dna/train-*.h5"),
                        &(struct dt_scan_rules){.seq_len = T, .reverse_complement = true}),
        .rules = {.seed = 3,
                  .vocab_size = 16,
                  .reset_token = -1,
                  .verify = true,
                  .reverse_complement = true},
        .batch = BATCH,
        .block = 3,
        .shuffle = true,
        .size = size,
        .rank = rank,
        .prefetch = 1,
    };
    struct dt_loader *loader;
    const struct dt_batch *batch;
    CHECK_OK(dt_loader_open(&config, first, &loader));
    for (int64_t step = first; step < n; step++) {
        CHECK_OK(dt_loader_next(loader, &batch, NULL));
        for (int row = 0; row < BATCH / size; row++) {
            int found = -1, at = row * T;
            for (int k = 0; k < 2 * (BASES / T); k++)
                if (is_row((const int32_t *)dt_batch_find(batch, "input_ids")->data + at,
                           (const int32_t *)dt_batch_find(batch, "labels")->data + at,
                           (const uint8_t *)dt_batch_find(batch, "reset")->data + at, k / 2 * T,
                           k % 2))
                    found = k;
            CHECK(found >= 0, "step %ld, row %d is no window of either strand", (long)step, row);
            strands[step][rank * BATCH / size + row] = found;
        }
    }
    dt_loader_close(loader);
}

static void test_strands(void)
{
    enum { STEPS = 30, EPOCH = 40 / BATCH };
    static int alone[STEPS][BATCH], halves[STEPS][BATCH], late[STEPS][BATCH];
    int reversed = 0, changed = 0, of_window[40];
    write_genome();
    read_strands(1, 0, 0, STEPS, alone);
    read_strands(2, 0, 0, STEPS, halves);
    read_strands(2, 1, 0, STEPS, halves);
    read_strands(1, 0, 17, STEPS, late);
    CHECK(memcmp(alone, halves, sizeof alone) == 0, "two ranks read other strands");
    CHECK(memcmp(alone[17], late[17], sizeof alone - sizeof *alone * 17) == 0,
          "a later start reads other strands");
    for (int step = 0; step < STEPS; step++)
        for (int row = 0; row < BATCH; row++) {
            int window = alone[step][row] / 2, strand = alone[step][row] % 2;
            reversed += strand;
            changed += step >= EPOCH && step < 2 * EPOCH && of_window[window] != strand;
            if (step < EPOCH)
                of_window[window] = strand;
        }
    // 240 fair coins give 120 heads within 5 deviations of 7.7, and 40 give 20 within 5 of 3.2.
    CHECK(reversed > 81 && reversed < 159, "%d of 240 windows are reversed", reversed);
    CHECK(changed > 4 && changed < 36, "%d of 40 windows change in the second epoch", changed);
}

static void refuse_scan(const char *path, const char *phrase)
{
    struct dt_dataset *dataset;
    CHECK_FAILS(dt_dataset_scan(path,
                                &(struct dt_scan_rules){.seq_len = 2, .reverse_complement = true},
                                &dataset),
                DT_USER, phrase);
}

static void put_complement(hid_t type, int64_t n, const void *values)
{
    const char *path = in_scratch("pairs.h5");
    hid_t file = new_file(path);
    put_vector(file, "tokens", H5T_STD_U8LE, 8, "\0\1\2\3\0\1\2\3");
    hsize_t size = (hsize_t)n;
    hid_t tokens = H5Dopen2(file, "tokens", H5P_DEFAULT), space = H5Screate_simple(1, &size, NULL);
    hid_t a = H5Acreate2(tokens, "complement", type, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(a, type, values) >= 0, "no attribute");
    H5Aclose(a);
    H5Sclose(space);
    H5Dclose(tokens);
    H5Fclose(file);
    refuse_scan(path, "does not pair the tokens");
}

static void test_no_strands(void)
{
    hid_t file = new_file(in_scratch("plain.h5"));
    put_vector(file, "tokens", H5T_STD_U8LE, 8, "\0\1\2\3\0\1\2\3");
    H5Fclose(file);
    refuse_scan(in_scratch("plain.h5"), "has no attribute complement");
    put_complement(H5T_STD_U8LE, 4, "\3\2\1\1");
    put_complement(H5T_STD_U8LE, 4, "\3\2\1\4");
    put_complement(H5T_STD_I8LE, 4, "\3\2\1\0");
    static const uint8_t many[300] = {0};
    put_complement(H5T_STD_U8LE, 300, many);
    refuse_scan("synthetic:random", "data.reverse_complement is for tokens of DNA");
}

int main(void)
{
    make_scratch();
    RUN(test_letters, test_long, test_progress, test_sides, test_refused, test_strands,
        test_no_strands);
    remove_scratch();
    return test_end();
}
