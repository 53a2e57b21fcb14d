// Tests how times, counts and ranges are written for people.
#include "base/text.h"

#include "test.h"

#include <stdbool.h>

static void test_durations(void)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{-1, "0:00"},          {0.4, "0:00"},     {0.5, "0:01"},
                 {59.4, "0:59"},        {59.5, "1:00"},    {3599.4, "59:59"},
                 {3599.5, "1:00:00"},   {3660, "1:01:00"}, {86399.5, "24:00:00"},
                 {360000, "100:00:00"}, {NAN, "0:00"}};
    char text[DT_DURATION_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_STR(dt_duration(cases[i].seconds, text), cases[i].text);
}

static void test_counts(void)
{
    CHECK_STR(DT_COUNT(0, "windows"), "0 windows");
    CHECK_STR(DT_COUNT(1, "windows"), "1 window");
    CHECK_STR(DT_COUNT(2, "ids"), "2 ids");
    CHECK_STR(DT_COUNT(INT64_MAX, "frames"), "9223372036854775807 frames");
}

// Every character in its shortest form needs all of its bytes. Surrogates are not characters.
static void test_characters(void)
{
    for (uint32_t c = 0; c < 0x120000; c++) {
        int length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        char bytes[4] = {(char)c};
        for (int i = length - 1, left = (int)c; i >= 0 && length > 1; i--, left >>= 6)
            bytes[i] = (char)(i > 0 ? 0x80 | (left & 0x3f) : (0xf0 << (4 - length)) | left);
        bool valid = c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
        int64_t found = dt_utf8_length(bytes, length);
        CHECK(found == (valid ? length : 0), "U+%04X has %lld bytes", c, (long long)found);
        if (length > 1 && dt_utf8_length(bytes, length - 1) != 0)
            CHECK(false, "U+%04X needs only %d bytes", c, length - 1);
    }
}

static void test_steps(void)
{
    static const char *const wrong[] = {"", "1", "1:", ":1", "2:1", "0:1", "1:2:3", "-1:2", "1:2 "};
    int64_t first = 0, last = 0;
    CHECK(dt_parse_steps("1:1", &first, &last) && first == 1 && last == 1, "1:1");
    CHECK(dt_parse_steps("7:999999999999999", &first, &last) && first == 7 &&
              last == 999999999999999,
          "15 digits");
    CHECK(!dt_parse_steps("1:1000000000000000", &first, &last), "16 digits");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(!dt_parse_steps(wrong[i], &first, &last), "\"%s\" is a range", wrong[i]);
}

int main(void)
{
    RUN(test_durations, test_counts, test_characters, test_steps);
    return test_end();
}
