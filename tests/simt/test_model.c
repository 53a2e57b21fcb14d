// Tests the host execution model: a correct kernel gives correct results in every order of threads,
// and each kind of planted bug is reported with the line at which the threads parted.
#include "faulty.h"
#include "simt_backend.h"

#if defined                                                                                        \
    __SANITIZE_ADDRESS__ // ends the process at such a write, so the model could not report it
enum { SHARED_IS_WATCHED_BY_ASAN = 1 };
#else
enum { SHARED_IS_WATCHED_BY_ASAN = 0 };
#endif

// Checks that the status is an error whose message contains `text`.
static void check_found(dt_status status, const char *text, const char *what)
{
    const char *message = dt_error_current()->message;
    CHECK(status == DT_MACHINE && strstr(message, text), "%s: status %d, \"%s\" lacks \"%s\"", what,
          (int)status, message, text);
    dt_error_clear();
}

static void test_planted(void)
{
    for (const struct planted_bug *bug = planted_bugs; bug->name; bug++)
        if (!(SHARED_IS_WATCHED_BY_ASAN && strstr(bug->says, "past the end")))
            check_found(bug->launch(), bug->says, bug->name);
}

static int reversed(const float *in, const float *out)
{
    for (int i = 0; i < 128; i++)
        if (!(out[i] == in[127 - i]))
            return 0;
    return 1;
}

// A race shows in at least one order. With its barrier or wait, the kernel is correct in all
// orders.
static void test_races(void)
{
    float *in = normal(256, 1.0, 1), *out = guarded(256 * 4);
    int race_seen = 0, copy_seen = 0;
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 5);
        check_ok(reverse_block(in, out, 1), "reverse");
        CHECK(reversed(in, out), "with its barrier, order %s", simt_order_name(order));
        check_ok(reverse_block(in, out, 0), "reverse without its barrier");
        race_seen += !reversed(in, out);
        check_ok(copy_block(in, out, 1), "copy");
        CHECK(same_bits(in, out), "with its wait, order %s", simt_order_name(order));
        check_ok(copy_block(in, out, 0), "copy without its wait");
        copy_seen += !same_bits(in, out);
    }
    CHECK(race_seen == SIMT_ORDERS, "a missing barrier shows in %d orders", race_seen);
    CHECK(copy_seen == 2, "a missing wait shows in %d orders, not in the two late ones", copy_seen);
    RELEASE(in);
    RELEASE(out);
}

static void test_indices(void)
{
    int32_t *count = guarded(288 * 4), *lanes = guarded(5 * 64 * 4);
    check_ok(count_threads(count), "count");
    check_ok(use_shuffles(lanes), "shuffles");
    for (int i = 0; i < 288; i++)
        CHECK_INT(count[i], i);
    for (int i = 0; i < 64; i++) {
        CHECK_INT(lanes[i], i % 32 == 31 ? i : i + 1);
        CHECK_INT(lanes[64 + i], i % 32 == 0 ? i : i - 1);
        CHECK_INT(lanes[128 + i], i ^ 5);
        CHECK_INT(lanes[192 + i], i / 32 * 32 + 3);
        CHECK_INT(lanes[256 + i], (int32_t)0xaaaaaaaa);
    }
    RELEASE(count);
    RELEASE(lanes);
}

static void test_reduction(void)
{
    float *in = normal(1003, 1.0, 3), sum[2], max, sum0 = 0.0f;
    double want = 0.0, want_max = -1e9;
    for (int i = 0; i < 1003; i++)
        want += (double)in[i], want_max = fmax(want_max, (double)in[i]);
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 9);
        check_ok(reduce_block(in, 1003, sum, &max), "reduce");
        sum0 = order == 0 ? sum[0] : sum0;
        CHECK(sum[0] == sum0 && sum[1] == 2.0f * sum0, "other bits in order %s",
              simt_order_name(order));
        // One rounding per addition, of sums of a few tens.
        CHECK_NEAR(sum[0], want, 1003 * 0x1p-24);
        CHECK(max == (float)want_max, "max %g, not %g", (double)max, want_max);
    }
    RELEASE(in);
}

// A kernel may use more than 48 KB only if it was allowed to.
static void test_allowed_shared(void)
{
    check_found(use_much_shared(), "bytes of shared memory", "64 KB");
    CHECK(!allow_much_shared(228 << 10), "more than the device has");
    check_found(use_much_shared(), "bytes of shared memory", "64 KB");
    CHECK(allow_much_shared(64 << 10), "less than the device has");
    check_ok(use_much_shared(), "use_much_shared");
}

int main(void)
{
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 3);
        test_planted();
        test_indices();
    }
    RUN(test_allowed_shared, test_races, test_reduction);
    return test_end();
}
