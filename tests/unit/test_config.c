// Tests the configuration reader with a small table of its own: what is read, what is refused with
// which message, which source wins, and that an echo reads back to the same values.
#include "base/config.h"
#include "base/nearest.h"
#include "captured.h"

#include <stddef.h>
#include <unistd.h>

struct values {
    bool flag;
    int64_t count, many, county;
    double rate, share;
    char word[DT_CONFIG_STRING_MAX], need[DT_CONFIG_STRING_MAX];
    int mode;
};

#define AT(s, f) .name = #f, .offset = offsetof(struct values, f)
static const struct dt_config_key one[] = {
    {AT(one, flag), .type = DT_CONFIG_BOOL, .fallback = "true", .help = "a flag"},
    {AT(one, count), .type = DT_CONFIG_INT, .fallback = "3", .min = -2, .max = 10, .help = "few"},
    {AT(one, many), .type = DT_CONFIG_INT, .fallback = "", .min = 1, .max = 0x1p62, .help = "lots",
     .replaced_by = "one.word"},
    {AT(one, word), .type = DT_CONFIG_STRING, .fallback = "", .help = "a word"},
    {AT(one, need), .type = DT_CONFIG_STRING, .fallback = "", .required = true, .help = "needed"},
    {0},
};
static const struct dt_config_key two[] = {
    {AT(two, rate), .type = DT_CONFIG_FLOAT, .fallback = "1e-3", .min = 0, .max = 10,
     .above_min = true, .help = "a rate"},
    {AT(two, share), .type = DT_CONFIG_FLOAT, .fallback = "auto", .auto_word = "auto",
     .auto_value = -1, .min = 0, .max = 1, .help = "a share"},
    {AT(two, county), .type = DT_CONFIG_INT, .fallback = "0", .max = 0x1p63, .help = "all",
     .below = "one.count"},
    {AT(two, mode), .type = DT_CONFIG_ENUM, .fallback = "fast", .choices = "fast|slow|exact",
     .help = "how"},
    {0},
};
static const struct dt_config_section sections[] = {
    {.name = "one", .keys = one}, {.name = "two", .keys = two}, {0}};
static const struct dt_config_table table = {
    .sections = sections,
    .settings_size = sizeof(struct values),
    .env_prefix = "TRY_",
};

// The values that were read last.
static struct values v;
static struct dt_config *config;

// Reads `text` as t.ini. Not all cases give "need", so it is not required here.
static dt_status parse(const char *text, const char *const *environment,
                       const char *const *overrides)
{
    int n = 0;
    while (overrides && overrides[n])
        n++;
    dt_error_clear();
    dt_config_free(config);
    return dt_config_parse(&table, NULL, "t.ini", text, (int64_t)strlen(text), environment,
                           overrides, n, &v, &config);
}

static void test_defaults(void)
{
    CHECK_OK(parse("[one]\nneed = x\n", NULL, NULL));
    CHECK_INT(v.flag, true);
    CHECK_INT(v.count, 3);
    CHECK_INT(v.many, 0);
    CHECK_STR(v.word, "");
    CHECK_STR(v.need, "x");
    CHECK(v.rate == 1e-3 && v.share == -1, "rate %g, share %g", v.rate, v.share);
    CHECK_INT(v.mode, 0);
    CHECK(dt_config_is_set(config, "one.need") && !dt_config_is_set(config, "one.word"), "set");
    CHECK_STR(dt_config_find(config, "one.need")->origin, "t.ini:2");
    CHECK_STR(dt_config_find(config, "two.rate")->origin, "default");
    CHECK_STR(dt_config_find(config, "two.rate")->text, "1e-3");
}

static void accept_all(struct dt_problems *problems, const void *settings,
                       const struct dt_config *given)
{
    (void)problems, (void)settings, (void)given;
}

// A key of a stronger source may lower or replace a key of a weaker one, and a message says so. The
// opposite never happens.
static void test_stronger_keys(void)
{
    static const char text[] = "[one]\nneed=x\ncount=9\nmany=5\n[two]\ncounty=7\n";
    static const struct {
        const char *environment, *command;
        int64_t county, many;
        const char *origin, *said; // origin and message of county
    } cases[] = {
        {"", "one.count=8", 7, 5, "t.ini:6", ""},
        {"", "one.count=7", 6, 5, "command line",
         "dtrain: warning: t.ini:6: two.county = 7 is not below one.count = 7 (command line): it "
         "becomes 6\n"},
        {"TRY_ONE__COUNT=2", "one.word=", 1, 5, "environment TRY_ONE__COUNT",
         "dtrain: warning: t.ini:6: two.county = 7 is not below one.count = 2 (environment "
         "TRY_ONE__COUNT): it becomes 1\n"},
        {"TRY_ONE__COUNT=2", "two.county=7", 7, 5, "command line", ""},
        {"TRY_ONE__WORD=w", "one.many=6", 7, 6, "t.ini:6", ""},
        {"TRY_ONE__WORD=w", "one.count=10", 7, 0, "t.ini:6",
         "dtrain: t.ini:4: one.many = 5 is replaced by one.word = w (environment "
         "TRY_ONE__WORD)\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *environment[] = {cases[i].environment, NULL};
        dt_config_free(config);
        capture_stderr();
        dt_status status = dt_config_parse(&table, accept_all, "t.ini", text, (int64_t)strlen(text),
                                           environment, &cases[i].command, 1, &v, &config);
        CHECK_STR(captured(), cases[i].said);
        CHECK_INT(status, DT_OK);
        CHECK_INT(v.county, cases[i].county);
        CHECK_INT(v.many, cases[i].many);
        CHECK_INT(dt_config_is_set(config, "one.many"), cases[i].many > 0);
        char echoed[24] = "";
        snprintf(echoed, sizeof echoed, "%d", (int)cases[i].county);
        CHECK_STR(dt_config_find(config, "two.county")->text, echoed);
        CHECK_STR(dt_config_find(config, "two.county")->origin, cases[i].origin);
    }
}

static void test_layout(void)
{
    static const char text[] = "\xef\xbb\xbf# first\r\n"
                               "  ; second\r\n"
                               "\r\n"
                               "[one] # the first\r\n"
                               "\tflag=false\r\n"
                               "  count =\t-2   ; low\r\n"
                               "word = a#b;c = d e  # not this\r\n"
                               "need = \" # in \\\" and \\\\ \"   ; but not this\r\n"
                               "[two]\r\n"
                               "rate = .5e+1\r\n"
                               "mode = slow";
    CHECK_OK(parse(text, NULL, NULL));
    CHECK(config, "%s", dt_error_current()->message);
    CHECK_INT(v.flag, false);
    CHECK_INT(v.count, -2);
    CHECK_STR(v.word, "a#b;c = d e");
    CHECK_STR(v.need, " # in \" and \\ ");
    CHECK(v.rate == 5, "rate %g", v.rate);
    CHECK_INT(v.mode, 1);
    CHECK_STR(dt_config_find(config, "two.mode")->origin, "t.ini:11");
}

static void test_sources(void)
{
    const char *environment[] = {"PATH=/bin",   "TRY_ONE__COUNT=5",        "TRY_TWO__RATE=2",
                                 "TRY_PLAIN=1", "TRY_ONE__WORD=from=here", NULL};
    const char *overrides[] = {"two.rate=10", "one.need=a=b.c", NULL};
    CHECK_OK(parse("[two]\nrate=1\n[one]\ncount=4\nneed=x\n", environment, overrides));
    CHECK_INT(v.count, 5);
    CHECK(v.rate == 10, "rate %g", v.rate); // the largest value allowed
    CHECK_STR(v.word, "from=here");
    CHECK_STR(v.need, "a=b.c");
    CHECK_STR(dt_config_find(config, "one.count")->origin, "environment TRY_ONE__COUNT");
    CHECK_STR(dt_config_find(config, "two.rate")->origin, "command line");
}

// A file with one bad line, and a part of the message that it must give.
struct bad {
    const char *line, *said;
};

static const struct bad bad_lines[] = {
    {"flag = yes", "t.ini:3: one.flag: 'yes' is neither true nor false (allowed: true | false)"},
    {"flag =", "t.ini:3: one.flag: missing value"},
    {"flag = true false", "'true false' is neither"},
    {"count = 11",
     "t.ini:3: one.count: 11 is out of range (allowed: a whole number from -2 to 10)"},
    {"count = -3", "out of range"},
    {"count = 3x", "'3x' is not a whole number"},
    {"count = 3 4", "'3 4' is not a whole number"},
    {"count = 3.0", "not a whole number"},
    {"count = 1e1", "not a whole number"},
    {"count = 0x3", "not a whole number"},
    {"count = 03", "not a whole number"},
    {"count = +3", "not a whole number"},
    {"count = 1_0", "not a whole number"},
    {"count = - 1", "not a whole number"},
    {"count = -", "not a whole number"},
    {"count = auto", "not a whole number"},
    {"many = 4611686018427387905", "one.many: 4611686018427387905 is out of range"},
    {"many = 9223372036854775808", "out of range"},
    {"many = -9223372036854775809", "out of range"},
    {"many = 99999999999999999999999999", "out of range"},
    {"need =", "one.need: missing value"},
    {"word = \"open", "t.ini:3: missing closing '\"'"},
    {"word = \"a\" b", "t.ini:3: unexpected text after the closing '\"'"},
    {"word = \"a\\n\"", "t.ini:3: within double quotes"},
    {"wrod = x", "t.ini:3: unknown key 'wrod' in section 'one': did you mean 'one.word'?"},
    {"rate = 1", "unknown key 'rate' in section 'one': did you mean 'two.rate'?"},
    {"zzzzzzzz = 1", "unknown key 'zzzzzzzz' in section 'one' (keys:"},
    {"count", "t.ini:3: 'count' is neither '[section]' nor 'key = value' nor a comment"},
    {"= 3", "t.ini:3: missing key before '='"},
    {"[two", "t.ini:3: missing ']' after the section's name"},
    {"[two] rate = 1", "t.ini:3: unexpected text after '[section]'"},
    {"[two]#", "t.ini:3: unexpected text after '[section]'"},
    {"[towo]", "t.ini:3: unknown section 'towo': did you mean 'two'? (sections: one, two)"},
    {"[]", "t.ini:3: unknown section ''"},
    {"[one]", "t.ini:3: duplicate section 'one': first in line 1"},
    {"count = 1\ncount = 1", "t.ini:4: duplicate one.count (first: t.ini:3)"},
    {"count = 1\x01", "t.ini:3: control character 0x01 at column 10"},
    {"count = 1\x7f", "t.ini:3: control character 0x7f at column 10"},
    {"# \x1b[31m", "t.ini:3: control character 0x1b"},
    {"word = \ta\tb", "t.ini:3: one.word: control character 0x09"},
    {"count = 1\rflag = true", "t.ini:3: control character 0x0d"},
    {"[two]\nrate = 0",
     "t.ini:4: two.rate: 0 is out of range (allowed: a number above 0 up to 10)"},
    {"[two]\nrate = 1e-3x", "'1e-3x' is not a plain decimal number"},
    {"[two]\nrate = 1e", "not a plain decimal number"},
    {"[two]\nrate = .", "not a plain decimal number"},
    {"[two]\nrate = e1", "not a plain decimal number"},
    {"[two]\nrate = nan", "not a plain decimal number"},
    {"[two]\nrate = inf", "not a plain decimal number"},
    {"[two]\nrate = -inf", "not a plain decimal number"},
    {"[two]\nrate = 0x1p3", "not a plain decimal number"},
    {"[two]\nrate = 1,5", "not a plain decimal number"},
    {"[two]\nrate = 1e999", "out of range"},
    {"[two]\nrate = 1e-999", "out of range"},
    {"[two]\nshare = 1e-999", "two.share: 1e-999 is out of range"},
    {"[two]\ncounty = 9223372036854775808", "out of range"},
    {"[two]\ncount = 1", "unknown key 'count' in section 'two': did you mean 'one.count'?"},
    {"[two]\nrate = -1", "out of range"},
    {"[two]\nshare = Auto", "(allowed: auto or a number from 0 to 1)"},
    {"[two]\nmode = fsat",
     "two.mode: 'fsat' is not one of the choices: did you mean 'fast'? (allowed: fast |"},
    {"[two]\nmode = FAST", "did you mean 'fast'?"},
    {"[two]\nmode = fast|slow", "is not one of the choices"},
};

static void check_refused(dt_status status, const char *line, const char *said)
{
    const char *message = dt_error_current()->message;
    CHECK_INT(status, DT_USER);
    CHECK(config == NULL, "a configuration for '%s'", line);
    CHECK(strstr(message, said), "'%s' gave: %s", line, message);
    CHECK(!strchr(message, '\n'), "one fault in '%s', but: %s", line, message);
}

static void test_bad_lines(void)
{
    for (size_t i = 0; i < sizeof bad_lines / sizeof bad_lines[0]; i++) {
        const struct bad *bad = &bad_lines[i];
        bool is_need = strncmp(bad->line, "need", 4) == 0;
        char text[256];
        snprintf(text, sizeof text, "[one]\n%s\n%s\n", is_need ? "" : "need = x", bad->line);
        check_refused(parse(text, NULL, NULL), bad->line, bad->said);
    }
}

static void test_bad_words(void)
{
    static const struct bad words[] = {
        {"count=1", "command line: 'count=1' is not of the form section.key=value"},
        {"one.count", "command line: 'one.count' is not of the form section.key=value"},
        {"count=1.5", "command line: 'count=1.5' is not of the form"},
        {"a\nb", "command line: 'a?b' is not of the form"},
        {"", "command line: '' is not of the form"},
        {"one.conut=1", "command line: unknown key 'conut' in section 'one': did you mean"},
        {"on.count=1", "command line: unknown section 'on': did you mean 'one'?"},
        {"one.count=x", "command line: one.count: 'x' is not a whole number"},
        {"one.need=", "command line: one.need: missing value"},
        {"one.word=a\x7f", "command line: one.word: control character 0x7f"},
        {"one.word=a\nb", "command line: one.word: control character 0x0a"},
    };
    static const struct bad variables[] = {
        {"TRY_ONE__CONUT=1", "environment: TRY_ONE__CONUT is not a known key: did you mean"},
        {"TRY_one__count=1", "environment: TRY_one__count is not a known key"},
        {"TRY_OEN__COUNT=1", "environment: TRY_OEN__COUNT is not a known key: did you mean"},
        {"TRY_ONE_COUNT=1", "environment: TRY_ONE_COUNT is not a known key: did you mean"},
        {"TRY_ONE__COUNT=x", "environment TRY_ONE__COUNT: one.count: 'x' is not a whole number"},
        {"TRY_ONE__COUNT=", "environment TRY_ONE__COUNT: one.count: missing value"},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const char *list[] = {words[i].line, NULL};
        check_refused(parse("[one]\nneed=x", NULL, list), words[i].line, words[i].said);
    }
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *list[] = {variables[i].line, NULL};
        check_refused(parse("[one]\nneed=x", list, NULL), variables[i].line, variables[i].said);
    }
    dt_status status =
        parse("[one]\nneed=x", NULL, (const char *[]){"one.count=1", "one.count=2", NULL});
    check_refused(status, "twice", "command line: duplicate one.count (first: command line)");
}

static void test_all_at_once(void)
{
    const char *environment[] = {"TRY_TWO__RATE=fast", NULL}, *overrides[] = {"one.many=-1", NULL};
    CHECK_INT(parse("stray = 1\n[one]\ncount = x\n[tow]\nrate = y\n[two]\nmode = z\n", environment,
                    overrides),
              DT_USER);
    CHECK_STR(dt_error_current()->message,
              "t.ini:1: 'stray' comes before any '[section]'\n"
              "t.ini:3: one.count: 'x' is not a whole number in plain decimal digits (allowed: a "
              "whole number from -2 to 10)\n"
              "t.ini:4: unknown section 'tow': did you mean 'two'? (sections: one, two)\n"
              "t.ini:7: two.mode: 'z' is not one of the choices (allowed: fast | slow | "
              "exact)\n"
              "environment TRY_TWO__RATE: two.rate: 'fast' is not a plain decimal number (allowed: "
              "a number above 0 up to 10)\n"
              "command line: one.many: -1 is out of range (allowed: a whole number from 1 to "
              "4611686018427387904)\n"
              "t.ini: one.need is required: needed");
    CHECK_ADVISES("--help");
}

static void test_very_many(void)
{
    static char text[1 << 20];
    size_t used = 0;
    const char *message = dt_error_current()->message, *more;
    for (int i = 0; i < 10000; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "line %d without sense\n", i);
    CHECK_INT(parse(text, NULL, NULL), DT_USER);
    more = strstr(message, "\nand ");
    CHECK(more && strncmp(message, "t.ini:1: 'line 0 ", 17) == 0, "%.80s", message);
    CHECK(more && atoi(more + 5) > 9000 && strstr(more, " more"), "%s", more);
}

static void test_long_texts(void)
{
    static char text[200 * 1024];
    strcpy(text, "[one]\nneed = ");
    memset(text + strlen(text), 'n', DT_CONFIG_STRING_MAX - 1);
    CHECK_OK(parse(text, NULL, NULL));
    CHECK_INT(strlen(v.need), DT_CONFIG_STRING_MAX - 1);
    strcat(text, "n");
    CHECK_FAILS(parse(text, NULL, NULL), DT_USER,
                "one.need: the text is too long: 1024 bytes (allowed: text of at most 1023 bytes)");

    memset(text, 'x', sizeof text - 1);
    memcpy(text, "[one]\nneed = x\n#", 16);
    text[15 + 64 * 1024] = 0; // a line of exactly 64 KiB
    CHECK_OK(parse(text, NULL, NULL));
    text[15 + 64 * 1024] = 'x'; // one byte too long
    strcpy(text + 16 + 64 * 1024, "\ncount = yy");
    CHECK_INT(parse(text, NULL, NULL), DT_USER);
    CHECK_STR(dt_error_current()->message,
              "t.ini:3: the line is longer than 64 KiB\n"
              "t.ini:4: one.count: 'yy' is not a whole number in plain decimal digits (allowed: a "
              "whole number from -2 to 10)");
}

// A message shows the end of a long path, and always the line number.
static void test_long_path(void)
{
    static const char lines[] = "[one]\nneed = x\ncount = yy\n";
    char path[1024];
    memset(path, 'p', sizeof path);
    strcpy(path + sizeof path - 8, "/t.ini");
    dt_config_free(config);
    CHECK_FAILS(
        dt_config_parse(&table, NULL, path, lines, sizeof lines - 1, NULL, NULL, 0, &v, &config),
        DT_USER, "pppp/t.ini:3: one.count: 'yy'");
}

static void test_zero_byte(void)
{
    static const char text[] = "[one]\nneed = x\0y\n";
    dt_config_free(config);
    CHECK_INT(
        dt_config_parse(&table, NULL, "t.ini", text, sizeof text - 1, NULL, NULL, 0, &v, &config),
        DT_USER);
    CHECK_SAYS("t.ini is not a text file: byte 0x00 at offset 14");
}

static char *echo(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    dt_config_echo(config, out);
    fclose(out);
    return text;
}

static void test_echo(void)
{
    static const char *const words[] = {"",        " ",        "a b",  "\"",     "\"x\"", "\\",
                                        "#",       "; x",      "a #b", "a#b",    " lead", "end ",
                                        "a = [b]", "[b]",      "\\\"", "a ; \\", "=",     "x\\ \"y",
                                        "'",       "\xc3\xa9", "x#"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char word[64];
        const char *overrides[] = {word, "two.rate=1.25e-7", "one.many=4611686018427387903", NULL};
        struct values first;
        char *text;
        snprintf(word, sizeof word, "one.word=%s", words[i]);
        CHECK_OK(parse("[one]\nneed=x", NULL, overrides));
        CHECK_STR(v.word, words[i]);
        first = v;
        text = echo();
        CHECK_OK(parse(text, NULL, NULL));
        CHECK(memcmp(&first, &v, sizeof first) == 0, "'%s' came back as:\n%s", words[i], text);
        CHECK(strstr(text, "# command line") && strstr(text, "# t.ini:2") &&
                  strstr(text, "# default"),
              "origins are missing:\n%s", text);
        free(text);
    }
    dt_config_free(config); // file names may contain any bytes
    CHECK_OK(dt_config_parse(&table, NULL, "t\n[x\x7f.ini", "[one]\nneed=x", 12, NULL, NULL, 0, &v,
                             &config));
    char *text = echo();
    CHECK(strstr(text, "# t?[x?.ini:2\n"), "the name of the file is in %s", text);
    free(text);
}

static void test_reject(void)
{
    struct dt_problems problems = {0};
    CHECK_OK(parse("[one]\nneed=x\ncount=2", NULL, NULL));
    CHECK_INT(dt_config_reject(config, "one.count", "less", "%d is too much", 2), DT_USER);
    CHECK_STR(dt_error_current()->message, "t.ini:3: one.count: 2 is too much");
    CHECK_STR(dt_error_current()->hint, "less");
    CHECK_INT(dt_config_reject(NULL, "one.count", NULL, "no"), DT_USER);
    CHECK_STR(dt_error_current()->message, "one.count: no");
    CHECK_OK(dt_problems_raise(&problems, NULL));
    dt_config_problem(&problems, config, "one.need", "a");
    dt_config_problem(&problems, config, "two.rate", "b");
    CHECK_INT(dt_problems_raise(&problems, NULL), DT_USER);
    CHECK_STR(dt_error_current()->message, "t.ini:2: one.need: a\nt.ini: two.rate: b");
    // Problems beyond the room of the text are counted, and dt_problems_raise reports their number.
    for (int i = 0; i < 1000; i++)
        dt_config_problem(&problems, config, "one.need", "one more that is wrong");
    CHECK_INT(problems.n, 1002);
    CHECK(problems.hidden > 500, "only %d are hidden", problems.hidden);
    CHECK_INT(dt_problems_raise(&problems, NULL), DT_USER);
    char hidden[32];
    snprintf(hidden, sizeof hidden, "%d more", problems.hidden);
    CHECK_SAYS(hidden);
}

static void test_load(void)
{
    char path[] = "test_config_XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "[one]\nneed = x\n", 15) == 15, "no scratch file");
    close(fd);
    setenv("TRY_TWO__MODE", "slow", 1);
    dt_config_free(config);
    CHECK_OK(dt_config_load(&table, NULL, path, (const char *[]){"one.count=7"}, 1, &v, &config));
    CHECK_INT(v.mode, 1);
    CHECK_INT(v.count, 7);
    CHECK_STR(v.need, "x");
    unlink(path);
    dt_config_free(config);
    CHECK_FAILS(dt_config_load(&table, NULL, path, NULL, 0, &v, &config), DT_USER, path);
    dt_config_free(config);
    CHECK_OK(dt_config_load(&table, NULL, NULL, (const char *[]){"one.need=y"}, 1, &v, &config));
    CHECK_STR(v.need, "y");
}

// Of several names with equal distance the first is suggested.
static void test_nearest(void)
{
    struct dt_nearest nearest = dt_nearest_to("seed");
    dt_nearest_offer(&nearest, "seek");
    dt_nearest_offer(&nearest, "need");
    CHECK_STR(nearest.best, "seek");
}

int main(void)
{
    RUN(test_nearest, test_defaults, test_stronger_keys, test_layout, test_sources, test_bad_lines,
        test_bad_words, test_all_at_once, test_very_many, test_long_texts, test_long_path,
        test_zero_byte, test_echo, test_reject, test_load);
    dt_config_free(config);
    return test_end();
}
