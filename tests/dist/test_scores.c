// Scores of heads against plain forms: counts by loops over all rows, AUC by loops over all pairs
// of rows. The data have ties, weights, missing targets, classes that never occur, and a constant
// column. Rows that are dealt to ranks in another order give the same bits as one rank.
#include "train/scores.h"

#include "base/rng.h"
#include "model/kinds.h"
#include "test.h"

enum { ROWS = 601, WIDE = 20 };
static const char heads_text[] = "kind:categorical*4 pair:categorical*2 bits:bernoulli*3 "
                                 "aim:regression*2 far:huber strain:huber none:bernoulli";
enum { KIND, PAIR, BITS, AIM, FAR, STRAIN, NOTHING, HEADS };
static struct dt_outputs outputs;
static float z[ROWS][WIDE], t[ROWS][WIDE];
static double w[ROWS];
static int first_of[HEADS]; // the first column of z that each head has

// Logits are multiples of 1/2, so that many are equal. No row has class 3 of `kind`, bit 2 is
// always 0, and nothing is predicted as class 2. The second number of `aim` is always 3.3, and
// squares of 3.3 round.
static void make_rows(void)
{
    struct dt_philox rng = dt_philox_init(5, 0, 0);
    for (int i = 0; i < ROWS; i++) {
        int class = (int)dt_philox_below(&rng, 3), bit[3];
        w[i] = i % 11 == 0 ? 0 : (double)(float)(0.1 + (double)dt_philox_uniform(&rng));
        for (int j = 0; j < WIDE; j++)
            z[i][j] = (float)dt_philox_below(&rng, 5) / 2;
        z[i][first_of[KIND] + class] += (float)dt_philox_below(&rng, 2);
        z[i][first_of[KIND] + 2] = -1;
        t[i][outputs.list[KIND].target] = i % 7 == 3 ? NAN : (float)class;
        t[i][outputs.list[PAIR].target] = (float)dt_philox_below(&rng, 2);
        for (int j = 0; j < 3; j++) {
            bit[j] = j < 2 && dt_philox_below(&rng, 3) == 0;
            z[i][first_of[BITS] + j] += (float)bit[j] - 1.5f;
            if (z[i][first_of[BITS] + j] == 0 && i % 2) // a logit of 0 ties with the threshold
                z[i][first_of[BITS] + j] = -0.0f;
            t[i][outputs.list[BITS].target + j] = (i + j) % 5 == 0 ? NAN : (float)bit[j];
        }
        float far = 5e4f + 1.4e4f * dt_philox_normal(&rng);
        t[i][outputs.list[AIM].target] = z[i][first_of[AIM]] + dt_philox_normal(&rng) / 2;
        t[i][outputs.list[AIM].target + 1] = i % 2 ? 3.3f : NAN;
        t[i][outputs.list[FAR].target] = far;
        z[i][first_of[FAR]] = far + 7e3f * dt_philox_normal(&rng);
        t[i][outputs.list[STRAIN].target] = 1e-30f * (far - 5e4f);
        z[i][first_of[STRAIN]] = 1e-30f * (z[i][first_of[FAR]] - 5e4f);
        t[i][outputs.list[NOTHING].target] = NAN;
    }
}

static void add_row(struct dt_scores *scores, int i)
{
    for (int k = 0; k < HEADS; k++)
        CHECK_OK(dt_scores_add(scores, k, z[i] + first_of[k], t[i] + outputs.list[k].target, w[i]));
}

static double score_of(const struct dt_scores *scores, int k, const char *name)
{
    struct dt_named_number list[DT_SCORES_MAX];
    int n = dt_scores_of(scores, k, list);
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return list[i].value;
    CHECK(false, "head %d has no %s", k, name);
    return NAN;
}

// ---- plain forms, for column j of head k over the rows whose target is not NaN

static double target(int k, int j, int i)
{
    return (double)t[i][outputs.list[k].target + j];
}

static int predicted(int k, int j, int i)
{
    const float *x = z[i] + first_of[k];
    int best = 0;
    if (!outputs.list[k].type->one_of)
        return x[j] > 0;
    for (int c = 1; c < outputs.list[k].width; c++)
        best = x[c] > x[best] ? c : best;
    return best;
}

static double probability(int k, int j, int c, int i)
{
    const float *x = z[i] + first_of[k];
    double total = 0;
    if (!outputs.list[k].type->one_of)
        return 1 / (1 + exp(-(double)x[j]));
    for (int m = 0; m < outputs.list[k].width; m++)
        total += exp((double)x[m]);
    return exp((double)x[c]) / total;
}

static double pairwise_auc(int k, int j, int c)
{
    double won = 0, pairs = 0;
    for (int a = 0; a < ROWS; a++)
        for (int b = 0; b < ROWS; b++) {
            if (target(k, j, a) != c || target(k, j, b) == c || isnan(target(k, j, b)))
                continue;
            double more = probability(k, j, c, a) - probability(k, j, c, b);
            // The logits are equal, and only rounding differs.
            won += w[a] * w[b] * (fabs(more) < 1e-9 ? 0.5 : more > 0);
            pairs += w[a] * w[b];
        }
    return won / pairs;
}

struct counts {
    double found, actual, predicted;
};
static struct counts count(int k, int j, int c)
{
    struct counts n = {0};
    for (int i = 0; i < ROWS; i++) {
        if (isnan(target(k, j, i)))
            continue;
        n.actual += w[i] * (target(k, j, i) == c);
        n.predicted += w[i] * (predicted(k, j, i) == c);
        n.found += w[i] * (target(k, j, i) == c && predicted(k, j, i) == c);
    }
    return n;
}

static double f1_of(struct counts n)
{
    double precision = n.found / n.predicted, recall = n.found / n.actual;
    return n.found > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

static void test_classes(const struct dt_scores *scores)
{
    struct counts n[4], bit[2][2];
    for (int c = 0; c < 4; c++)
        n[c] = count(KIND, 0, c);
    CHECK(n[3].actual == 0 && n[3].predicted > 0 && n[2].actual > 0 && n[2].predicted == 0,
          "classes that are missing");
    CHECK_NEAR(score_of(scores, KIND, "balanced_accuracy"),
               (n[0].found / n[0].actual + n[1].found / n[1].actual) / 3, 1e-12);
    CHECK_NEAR(score_of(scores, KIND, "f1"), (f1_of(n[0]) + f1_of(n[1])) / 4, 1e-12);
    CHECK_NEAR(score_of(scores, KIND, "auc"),
               (pairwise_auc(KIND, 0, 0) + pairwise_auc(KIND, 0, 1) + pairwise_auc(KIND, 0, 2)) / 3,
               1e-12);

    struct counts no = count(PAIR, 0, 0), yes = count(PAIR, 0, 1);
    CHECK_NEAR(score_of(scores, PAIR, "balanced_accuracy"),
               (no.found / no.actual + yes.found / yes.actual) / 2, 1e-12);
    CHECK_NEAR(score_of(scores, PAIR, "f1"), f1_of(yes), 1e-12);
    CHECK_NEAR(score_of(scores, PAIR, "auc"), pairwise_auc(PAIR, 0, 1), 1e-12);

    for (int j = 0; j < 2; j++)
        for (int c = 0; c < 2; c++)
            bit[j][c] = count(BITS, j, c);
    struct counts off = count(BITS, 2, 0);
    CHECK(off.actual > off.found && count(BITS, 2, 1).actual == 0, "a bit that is always 0");
    double balanced = off.found / off.actual;
    for (int j = 0; j < 2; j++)
        balanced += (bit[j][0].found / bit[j][0].actual + bit[j][1].found / bit[j][1].actual) / 2;
    CHECK_NEAR(score_of(scores, BITS, "balanced_accuracy"), balanced / 3, 1e-12);
    CHECK_NEAR(score_of(scores, BITS, "f1"), (f1_of(bit[0][1]) + f1_of(bit[1][1])) / 3, 1e-12);
    CHECK_NEAR(score_of(scores, BITS, "auc"),
               (pairwise_auc(BITS, 0, 1) + pairwise_auc(BITS, 1, 1)) / 2, 1e-12);

    const char *const names[] = {"balanced_accuracy", "f1", "auc"};
    for (int i = 0; i < 3; i++)
        CHECK(isnan(score_of(scores, NOTHING, names[i])), "%s of no rows", names[i]);
}

static void test_confusion(const struct dt_scores *scores)
{
    const double *cells = dt_scores_confusion(scores, KIND);
    double want[4][4] = {{0}};
    for (int i = 0; i < ROWS; i++)
        if (!isnan(target(KIND, 0, i)))
            want[(int)target(KIND, 0, i)][predicted(KIND, 0, i)] += w[i];
    for (int i = 0; i < 16; i++)
        CHECK_NEAR(cells[i], want[i / 4][i % 4], 1e-12);
    CHECK(!dt_scores_confusion(scores, BITS) && !dt_scores_confusion(scores, AIM), "no classes");
}

// Checks columns [0, columns). R² needs deviations from the mean, so the reference makes a second
// pass over the rows.
static void test_numbers(const struct dt_scores *scores, int k, int columns)
{
    double all = 0, absolute = 0, square = 0, r2 = 0;
    for (int j = 0; j < columns; j++) {
        double weight = 0, sum = 0, residual = 0, total = 0;
        for (int i = 0; i < ROWS; i++) {
            double y = target(k, j, i), e = (double)z[i][first_of[k] + j] - y;
            if (isnan(y))
                continue;
            weight += w[i], sum += w[i] * y, residual += w[i] * e * e;
            absolute += w[i] * fabs(e);
        }
        for (int i = 0; i < ROWS; i++)
            if (!isnan(target(k, j, i)))
                total += w[i] * pow(target(k, j, i) - sum / weight, 2);
        all += weight, square += residual;
        r2 = j == 0 ? 1 - residual / total : r2; // the second column of `aim` is constant
    }
    CHECK_NEAR(score_of(scores, k, "mae"), absolute / all, 1e-12);
    CHECK_NEAR(score_of(scores, k, "rmse"), sqrt(square / all), 1e-12);
    CHECK_NEAR(score_of(scores, k, "r2"), r2, 1e-11); // squares of 5e4 are 13 times the spread
}

static void test_not_finite(struct dt_comm *self)
{
    struct dt_scores *scores;
    float row[4] = {1, NAN, 0, 0}, fine[4] = {1, 0, 2, 3}, label = 1;
    CHECK_OK(dt_scores_create(&outputs, 2, &scores));
    CHECK_OK(dt_scores_add(scores, KIND, row, &label, 1));
    CHECK_OK(dt_scores_add(scores, KIND, fine, &label, 1));
    CHECK_OK(dt_scores_add(scores, PAIR, fine, &label, 1));
    CHECK_OK(dt_scores_finish(scores, self));
    CHECK(isnan(score_of(scores, KIND, "f1")) && isnan(score_of(scores, KIND, "auc")),
          "a prediction is not a number");
    CHECK(score_of(scores, PAIR, "balanced_accuracy") == 0, "the other head's are");
    dt_scores_destroy(scores);
}

// With more rows than scores may be kept for, the head has no AUC but all other scores.
static void test_limit(struct dt_comm *self)
{
    struct dt_scores *scores;
    int64_t most = DT_SCORES_BYTES / (4 * 8); // `kind` is the widest head
    float rows[2][2] = {{1, 0}, {0, 1}}, labels[] = {0, 1};
    CHECK_INT(dt_scores_bytes(&outputs, 10, most), 10 * 8 * (4 + 1 + 3 + 1));
    CHECK_INT(dt_scores_bytes(&outputs, 10, most + 1), 10 * 8 * (1 + 3 + 1));
    CHECK_OK(dt_scores_create(&outputs, DT_SCORES_BYTES / 8 + 1, &scores));
    for (int i = 0; i < 2; i++)
        CHECK_OK(dt_scores_add(scores, PAIR, rows[i], &labels[i], 1));
    CHECK_OK(dt_scores_finish(scores, self));
    CHECK(isnan(score_of(scores, PAIR, "auc")) && score_of(scores, PAIR, "f1") == 1, "no AUC");
    dt_scores_destroy(scores);
}

int main(void)
{
    struct dt_comm *comm, *self;
    struct dt_scores *dealt, *whole;
    CHECK_OK(dt_comm_open(DT_COMM_KIND_AUTO, &comm));
    CHECK_OK(dt_comm_open(DT_COMM_KIND_SELF, &self));
    CHECK_OK(dt_heads_parse(heads_text, &outputs));
    for (int k = 1; k < HEADS; k++)
        first_of[k] = first_of[k - 1] + (int)outputs.list[k - 1].width;
    make_rows();
    CHECK_OK(dt_scores_create(&outputs, ROWS, &dealt));
    CHECK_OK(dt_scores_create(&outputs, ROWS, &whole));
    for (int i = 0; i < ROWS; i++) {
        add_row(whole, i);
        if ((ROWS - 1 - i) * 5 % 7 % comm->info.size == comm->info.rank)
            add_row(dealt, ROWS - 1 - i);
    }
    CHECK_OK(dt_scores_finish(whole, self));
    CHECK_OK(dt_scores_finish(dealt, comm));
    for (int k = 0; comm->info.rank == 0 && k < HEADS; k++) {
        struct dt_named_number one[DT_SCORES_MAX], other[DT_SCORES_MAX];
        int n = dt_scores_of(whole, k, one);
        CHECK_INT(dt_scores_of(dealt, k, other), n);
        for (int i = 0; i < n; i++)
            CHECK(one[i].value == other[i].value || (isnan(one[i].value) && isnan(other[i].value)),
                  "%s of head %d: %.17g of one rank, %.17g of %d", one[i].name, k, one[i].value,
                  other[i].value, comm->info.size);
    }
    test_classes(whole);
    test_confusion(whole);
    test_numbers(whole, AIM, 2);
    test_numbers(whole, FAR, 1);
    test_numbers(whole, STRAIN, 1);
    test_not_finite(self);
    test_limit(self);
    dt_scores_destroy(dealt);
    dt_scores_destroy(whole);
    dt_comm_close(self);
    dt_comm_close(comm);
    return test_end();
}
