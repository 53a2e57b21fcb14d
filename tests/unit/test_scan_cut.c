// Tests how the CUDA scan is cut into blocks (kernels/scan_cut.h), at the widths of the 130M, 370M,
// 790M and 1.4B models, 512 to 65,536 tokens and every batch from 1 to 64. The chosen cut must take
// at most 1 / 0.9 of the time of the best one. A simulation of the device's block scheduler
// computes both times; it shares only the price of a token with the rule. Cuts cover every token
// once. The test prints how full the device is and, with an argument, every cut.
#include "kernels/scan_cut.h"

#include "test.h"

enum { BATCHES = 64, RESIDENT_MOST = 4, KINDS_MOST = 256, WIDTH = 32 };

// A group of SMs with the same blocks.
struct kind {
    double left[RESIDENT_MOST]; // tokens left in each resident block, in increasing order
    int64_t blocks, sms;
};

struct simulation {
    struct kind kinds[KINDS_MOST];
    int count;
};

static bool same_kind(const struct kind *a, const struct kind *b)
{
    if (a->blocks != b->blocks)
        return false;
    for (int64_t i = 0; i < a->blocks; i++)
        if (fabs(a->left[i] - b->left[i]) > 1e-6)
            return false;
    return true;
}

static void add_kind(struct simulation *s, struct kind kind)
{
    for (int i = 0; i < s->count; i++)
        if (same_kind(&s->kinds[i], &kind)) {
            s->kinds[i].sms += kind.sms;
            return;
        }
    if (s->count == KINDS_MOST) {
        CHECK(false, "more than %d kinds of SM", KINDS_MOST);
        exit(test_end());
    }
    s->kinds[s->count++] = kind;
}

// Gives the next block to the SMs with the fewest blocks, and returns how many of `blocks` were
// placed.
static int64_t place_blocks(struct simulation *s, int64_t blocks, double tokens, int64_t resident)
{
    int to = -1;
    for (int i = 0; i < s->count; i++)
        if (s->kinds[i].blocks < resident && (to < 0 || s->kinds[i].blocks < s->kinds[to].blocks))
            to = i;
    if (to < 0)
        return 0;
    struct kind kind = s->kinds[to];
    int64_t sms = kind.sms < blocks ? kind.sms : blocks, at = kind.blocks++;
    for (; at > 0 && kind.left[at - 1] > tokens; at--)
        kind.left[at] = kind.left[at - 1];
    kind.left[at] = tokens;
    kind.sms = sms;
    s->kinds[to].sms -= sms;
    if (s->kinds[to].sms == 0)
        s->kinds[to] = s->kinds[--s->count];
    add_kind(s, kind);
    return sms;
}

// Blocks share an SM evenly. A single block uses at most half of it.
static double token_time(int64_t blocks)
{
    return blocks == 1 ? 2.0 : (double)blocks;
}

// Advances until the first block on any SM ends, and returns the time that took.
static double advance(struct simulation *s)
{
    double time = INFINITY;
    for (int i = 0; i < s->count; i++)
        if (s->kinds[i].blocks > 0)
            time = fmin(time, s->kinds[i].left[0] * token_time(s->kinds[i].blocks));
    struct simulation before = *s;
    s->count = 0;
    for (int i = 0; i < before.count; i++) {
        struct kind kind = before.kinds[i];
        int64_t kept = 0;
        for (int64_t k = 0; k < kind.blocks; k++) {
            double left = kind.left[k] - time / token_time(kind.blocks);
            if (left > 1e-6)
                kind.left[kept++] = left;
        }
        kind.blocks = kept;
        add_kind(s, kind);
    }
    return time;
}

// Returns the time of a launch of `blocks` with `tokens` each and then `more` shorter ones, in
// tokens of an SM at full rate.
static double launch_time(int64_t blocks, int64_t tokens, int64_t more, int64_t more_tokens,
                          int64_t resident)
{
    static struct simulation s;
    double time = 0.0;
    s.count = 1;
    s.kinds[0] = (struct kind){.sms = SCAN_LARGE_DEVICE.sms};
    for (;;) {
        while (blocks + more > 0) {
            int64_t *from = blocks > 0 ? &blocks : &more;
            int64_t placed =
                place_blocks(&s, *from, (double)(blocks > 0 ? tokens : more_tokens), resident);
            if (placed == 0)
                break;
            *from -= placed;
        }
        if (s.count == 1 && s.kinds[0].blocks == 0)
            return time;
        time += advance(&s);
    }
}

// Returns the price of a cut in issue slots.
static double cut_time(const struct scan_cut *cut, int64_t batch, const scan_costs *costs)
{
    int two = cut->width > WIDTH;
    int64_t others = batch - cut->whole, blocks = cut->channel_blocks;
    int64_t tokens = cut->length + SCAN_LARGE_DEVICE.start_tokens;
    int64_t steps = cut->steps + SCAN_LARGE_DEVICE.start_tokens + cut->segments;
    double time = (double)costs->token[two] * launch_time(cut->whole * blocks, tokens,
                                                          others * blocks * cut->segments, steps,
                                                          costs->resident);
    if (others > 0)
        time += (double)SCAN_LARGE_DEVICE.launch +
                (double)costs->first_token[two] * launch_time(others * blocks * (cut->segments - 1),
                                                              steps, 0, 0, costs->resident);
    return time;
}

// Returns a lower bound of the time: the work spread evenly, and starts cost nothing.
static double least_time(const struct scan_cut *cut, int64_t batch, const scan_costs *costs)
{
    int two = cut->width > WIDTH;
    int64_t firsts = (batch - cut->whole) * (cut->segments - 1) * cut->steps;
    return (double)(cut->channel_blocks *
                    (batch * cut->length * costs->token[two] + firsts * costs->first_token[two])) /
           (double)SCAN_LARGE_DEVICE.sms;
}

struct shape {
    int64_t channels, length;
};

// Returns the best time of many more cuts than the rule considers, with any number of whole
// sequences, or `best` if that is less.
static double best_time(int64_t batch, struct shape shape, int64_t unit, const scan_costs *costs,
                        double best)
{
    const int64_t segments[] = {2, 3, 4, 5, 6, 8, 11, 16, 24, 32};
    for (int64_t width = WIDTH; width <= 2 * WIDTH; width += WIDTH) {
        scan_cut uncut = scan_uncut(batch, shape.length, shape.channels, width, unit);
        best = fmin(best, cut_time(&uncut, batch, costs));
        for (size_t i = 0; i < sizeof segments / sizeof *segments; i++)
            for (int64_t whole = 0; whole < batch; whole++) {
                scan_cut cut = scan_cut_into(uncut, whole, segments[i], unit);
                if (cut.steps >= SCAN_LARGE_DEVICE.least_steps &&
                    least_time(&cut, batch, costs) < best)
                    best = fmin(best, cut_time(&cut, batch, costs));
            }
    }
    return best;
}

static void check_cover(const scan_cut *cut, int64_t batch, int64_t unit)
{
    CHECK(cut->whole >= 0 && cut->whole <= batch, "whole: %d of %d", (int)cut->whole, (int)batch);
    CHECK((cut->segments == 1) == (cut->whole == batch), "%d whole of %d, but %d segments",
          (int)cut->whole, (int)batch, (int)cut->segments);
    CHECK(cut->segments * cut->steps >= cut->length &&
              (cut->segments - 1) * cut->steps < cut->length,
          "%d segments of %d tokens for %d", (int)cut->segments, (int)cut->steps, (int)cut->length);
    CHECK(cut->segments == 1 || cut->steps % unit == 0, "a segment of %d tokens, in units of %d",
          (int)cut->steps, (int)unit);
    CHECK(cut->channel_blocks * cut->width >= cut->channels &&
              (cut->channel_blocks - 1) * cut->width < cut->channels,
          "%d blocks of %d channels for %d", (int)cut->channel_blocks, (int)cut->width,
          (int)cut->channels);
}

static const int64_t WIDTHS[2] = {WIDTH, 2 * WIDTH};
static bool show; // prints each cut

// The fill compares the time of every token once, spread evenly over the SMs, with the time that
// the cut takes: first runs and starts do not count as work. `share` shows whether one or two
// channels per lane are better.
static void check_shape(const char *op, struct shape shape, int64_t unit, const scan_costs *costs,
                        double fill_least)
{
    double worst = 1.0, worst_fill = 1.0;
    int64_t worst_at = 0, worst_fill_at = 0;
    for (int64_t batch = 1; batch <= BATCHES; batch++) {
        scan_cut cut = scan_choose_cut(batch, shape.length, shape.channels, WIDTHS, unit, unit,
                                       costs, &SCAN_LARGE_DEVICE);
        double time = cut_time(&cut, batch, costs);
        double share = best_time(batch, shape, unit, costs, time) / time;
        double fill =
            (double)(batch * cut.channel_blocks * shape.length * costs->token[cut.width > WIDTH]) /
            (double)SCAN_LARGE_DEVICE.sms / time;
        check_cover(&cut, batch, unit);
        CHECK(share >= 0.9,
              "%s B %d L %d D %d: %d whole, %d segments of %d, width %d: %.2f of best", op,
              (int)batch, (int)shape.length, (int)shape.channels, (int)cut.whole, (int)cut.segments,
              (int)cut.steps, (int)cut.width, share);
        if (share < worst)
            worst = share, worst_at = batch;
        if (batch >= 8 && fill < worst_fill)
            worst_fill = fill, worst_fill_at = batch;
        if (show)
            printf("%s D %d L %d B %d: %d whole, %d segments, width %d: fill %.2f\n", op,
                   (int)shape.channels, (int)shape.length, (int)batch, (int)cut.whole,
                   (int)cut.segments, (int)cut.width, fill);
    }
    printf("%-8s D %4d L %4d: worst %.2f of the best cut (B %d); from B 8 on at least %.2f full (B "
           "%d)\n",
           op, (int)shape.channels, (int)shape.length, worst, (int)worst_at, worst_fill,
           (int)worst_fill_at);
    CHECK(worst_fill >= fill_least, "%s D %d L %d B %d: only %.2f full", op, (int)shape.channels,
          (int)shape.length, (int)worst_fill_at, worst_fill);
}

static void test_awkward(void)
{
    const int64_t batches[] = {1, 3, 64, 1000}, lengths[] = {1, 31, 33, 64, 65, 1000, 1000000};
    const int64_t channels[] = {1, 33, 100000}, only_one[2] = {WIDTH, 0};
    for (int i = 0; i < 4 * 7 * 3; i++)
        for (int small = 0; small < 2; small++) {
            int64_t B = batches[i % 4], L = lengths[i / 4 % 7], D = channels[i / 28];
            const scan_device *device = small ? &SCAN_SMALL_DEVICE : &SCAN_LARGE_DEVICE;
            scan_cut two = scan_choose_cut(B, L, D, WIDTHS, 7, 14, &SCAN_FORWARD_COSTS, device);
            scan_cut one = scan_choose_cut(B, L, D, only_one, 7, 14, &SCAN_FORWARD_COSTS, device);
            check_cover(&two, B, 14);
            check_cover(&one, B, 14);
            CHECK_INT(one.width, WIDTH);
            CHECK_INT(two.chunks, (L + 6) / 7);
        }
}

int main(int argc, char **argv)
{
    (void)argv;
    show = argc > 1;
    const struct shape shapes[] = {{1536, 2048},  {1536, 512},   {1536, 4096},  {1536, 8192},
                                   {1536, 16384}, {1536, 32768}, {1536, 65536}, {2048, 2048},
                                   {3072, 2048},  {4096, 2048}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_shape("forward", shapes[i], 16, &SCAN_FORWARD_COSTS, 0.75);
        // Two channels per lane cost 0.64 of one channel per lane. So segments of such blocks may
        // pay where whole sequences of the others would fill more of the device.
        check_shape("backward", shapes[i], 8, &SCAN_BACKWARD_COSTS, 0.7);
    }
    test_awkward();
    return test_end();
}
