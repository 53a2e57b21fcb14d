// Compares Philox with known answers of its authors, and tests what is drawn from it: streams,
// bounds, moments.
#include "base/rng.h"

#include "test.h"

// The lines "philox4x32 10" of kat_vectors in Random123: counter, key, output.
static const struct {
    uint32_t counter[4], key[2], out[4];
} known[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void test_known_answers(void)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        dt_philox_block(known[i].key, known[i].counter, out);
        for (int j = 0; j < 4; j++)
            CHECK(out[j] == known[i].out[j], "vector %zu word %d: %08x", i, j, (unsigned)out[j]);
    }
}

// The words of a stream are the blocks of the counters {0, 1, 2, …; substream; stream} in order.
static void test_stream_layout(void)
{
    const uint64_t seed = 0x0123456789abcdef, substream = 0xfedcba9876543210;
    const uint32_t stream = 77, key[2] = {0x89abcdef, 0x01234567};
    struct dt_philox rng = dt_philox_init(seed, stream, substream);
    for (uint32_t block = 0; block < 3; block++) {
        uint32_t counter[4] = {block, 0x76543210, 0xfedcba98, stream}, out[4];
        dt_philox_block(key, counter, out);
        for (int j = 0; j < 4; j++)
            CHECK_INT(dt_philox_u32(&rng), out[j]);
    }
}

static void test_below_is_the_written_rule(void)
{
    static const uint64_t limits[] = {1,         2, 3, 10, 1000003, 1ull << 40, (1ull << 63) + 1,
                                      UINT64_MAX};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct dt_philox rng = dt_philox_init(5, 6, 7), words = rng;
        unsigned __int128 two64 = (unsigned __int128)1 << 64, top = two64 / limits[i] * limits[i];
        for (int draw = 0; draw < 200; draw++) {
            uint64_t word;
            do {
                word = dt_philox_u32(&words);
                word |= (uint64_t)dt_philox_u32(&words) << 32;
            } while (word >= top);
            uint64_t got = dt_philox_below(&rng, limits[i]);
            CHECK(got == word % limits[i], "draw %d below %llu", draw,
                  (unsigned long long)limits[i]);
        }
    }
}

static void test_below_is_even(void)
{
    enum { SIDES = 7, DRAWS = 70000 };
    struct dt_philox rng = dt_philox_init(1337, 0, 0);
    int count[SIDES] = {0};
    for (int i = 0; i < DRAWS; i++)
        count[dt_philox_below(&rng, SIDES)]++;
    // A count has a standard deviation of sqrt(70000 * 6 / 49) = 93. Five of them are allowed.
    for (int i = 0; i < SIDES; i++)
        CHECK(abs(count[i] - DRAWS / SIDES) < 465, "side %d came %d times", i, count[i]);
}

static void test_uniform(void)
{
    enum { DRAWS = 100000 };
    struct dt_philox rng = dt_philox_init(1, 2, 3), words = rng;
    double sum = 0;
    for (int i = 0; i < DRAWS; i++) {
        float x = dt_philox_uniform(&rng);
        CHECK(x == (float)(dt_philox_u32(&words) >> 8) / 16777216.0f && x < 1.0f, "%g", (double)x);
        sum += (double)x;
    }
    CHECK_NEAR(sum / DRAWS, 0.5, 0.0046); // five times sqrt(1/12/100000)
}

// Moments of N(0, 1). Each tolerance is five standard deviations of the estimate from 200,000
// draws.
static void test_normal(void)
{
    enum { DRAWS = 200000 };
    struct dt_philox rng = dt_philox_init(42, 0, 9);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, previous = 0, lag = 0, largest = 0;
    for (int i = 0; i < DRAWS; i++) {
        double x = (double)dt_philox_normal(&rng);
        m1 += x / DRAWS;
        m2 += x * x / DRAWS;
        m3 += x * x * x / DRAWS;
        m4 += x * x * x * x / DRAWS;
        lag += x * previous / DRAWS;
        previous = x;
        largest = fmax(largest, fabs(x));
    }
    CHECK_NEAR(m1, 0, 0.0112);  // sqrt(1 / n)
    CHECK_NEAR(m2, 1, 0.0158);  // sqrt(2 / n)
    CHECK_NEAR(m3, 0, 0.0433);  // sqrt(15 / n)
    CHECK_NEAR(m4, 3, 0.0366);  // sqrt(96 / n), divided by 3 since CHECK_NEAR is relative
    CHECK_NEAR(lag, 0, 0.0112); // neighbours are independent: sqrt(1 / n)
    CHECK(largest > 4 && largest < 5.78, "largest |x| is %g", largest);
}

static void test_normal_formula(void)
{
    struct dt_philox rng = dt_philox_init(3, 1, 4), uniforms = rng;
    for (int i = 0; i < 1000; i++) {
        double u = (double)dt_philox_uniform(&uniforms), v = (double)dt_philox_uniform(&uniforms);
        double want = sqrt(-2 * log1p(-u)) * cos(2 * M_PI * v);
        CHECK_NEAR(dt_philox_normal(&rng), want, 1e-6); // half an ulp of fp32 at 5.77 is 2.4e-7
    }
}

int main(void)
{
    RUN(test_known_answers, test_stream_layout, test_below_is_the_written_rule, test_below_is_even,
        test_uniform, test_normal, test_normal_formula);
    return test_end();
}
