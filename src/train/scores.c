// Counts the predictions of heads and computes scores from the counts. A score is one row of the
// table; `count_classes` and `count_numbers` collect what it needs.
#include "train/scores.h"

#include "base/exact_sum.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/round.h"
#include "comm/job_control.h"
#include "kernels/math_cpu.h"

#include <math.h>

// Sums per column and class: the weights of its rows that are predicted correctly, of all its rows,
// and of all rows predicted as it. Sums per column of numbers, over all rows: the weight, and the
// weight times |y - t|, (y - t)², t and t².
enum { FOUND, ACTUAL, PREDICTED, CLASS_SUMS };
enum { ALL, ABSOLUTE, SQUARE, TARGET, TARGET_SQUARE, NUMBER_SUMS };

struct head {
    const struct dt_output *output;
    int64_t columns, classes;  // classes 0: numbers
    int64_t n_sums, confusion; // index of the confusion matrix among the sums; 0: none
    struct dt_exact_sum *sums; // [columns, classes, CLASS_SUMS], or [columns, NUMBER_SUMS]
    double *values;            // values of the sums, at the end
    float *drawn;              // [columns]: one prediction
    // Records of rows for AUC: key of the score, whether the row belongs to the class, weight.
    int64_t lists, n, room; // lists 0: none
    uint64_t *records;      // [n, lists]
    double auc;
};

struct dt_scores {
    int n;
    struct head heads[DT_OUTPUTS_MAX];
    int64_t n_sums;
    struct dt_exact_sum *sums; // sums of all heads
};

// ---- sizes

static int64_t lists_of(const struct dt_output *output)
{
    if (output->classes == 0)
        return 0;
    return output->classes == 2 ? output->target_width : output->classes;
}

static int64_t record_bytes(const struct dt_output *output, int64_t rows)
{
    return lists_of(output) * (int64_t)sizeof(uint64_t) * rows;
}

int64_t dt_scores_bytes(const struct dt_outputs *outputs, int64_t rows, int64_t all)
{
    int64_t bytes = 0;
    for (int k = 0; k < outputs->n; k++)
        if (record_bytes(&outputs->list[k], all) <= DT_SCORES_BYTES)
            bytes += record_bytes(&outputs->list[k], rows);
    return bytes;
}

void dt_scores_warn(const struct dt_outputs *outputs, int64_t all)
{
    for (int k = 0; k < outputs->n; k++)
        if (record_bytes(&outputs->list[k], all) > DT_SCORES_BYTES)
            dt_warn("the AUC of head \"%s\" needs %.1f GiB for the scores of a validation, more "
                    "than %.0f GiB, and is not computed: with fewer log.eval_batches it is",
                    outputs->list[k].name, (double)record_bytes(&outputs->list[k], all) / 0x1p30,
                    (double)DT_SCORES_BYTES / 0x1p30);
}

static void shape_head(struct head *head, const struct dt_output *output, int64_t all)
{
    *head = (struct head){
        .output = output, .columns = output->target_width, .classes = output->classes, .auc = NAN};
    head->n_sums = head->columns * (head->classes > 0 ? head->classes * CLASS_SUMS : NUMBER_SUMS);
    if (output->type->one_of && head->classes <= DT_CONFUSION_CLASSES) {
        head->confusion = head->n_sums;
        head->n_sums += head->classes * head->classes;
    }
    if (record_bytes(output, all) <= DT_SCORES_BYTES)
        head->lists = lists_of(output);
}

dt_status dt_scores_create(const struct dt_outputs *outputs, int64_t all, struct dt_scores **out)
{
    struct dt_scores *s;
    dt_status status;
    DT_TRY(DT_NEW(&s, 1, "scores"));
    for (; s->n < outputs->n; s->n++) {
        shape_head(&s->heads[s->n], &outputs->list[s->n], all);
        s->n_sums += s->heads[s->n].n_sums;
    }
    DT_TRY_GOTO(status, fail, DT_NEW(&s->sums, s->n_sums, "sums of scores"));
    for (int64_t k = 0, first = 0; k < s->n; first += s->heads[k++].n_sums) {
        struct head *head = &s->heads[k];
        head->sums = s->sums + first;
        DT_TRY_GOTO(status, fail, DT_NEW(&head->values, head->n_sums, "scores"));
        DT_TRY_GOTO(status, fail, DT_NEW(&head->drawn, head->columns, "scores"));
    }
    *out = s;
    return DT_OK;
fail:
    dt_scores_destroy(s);
    return status;
}

void dt_scores_destroy(struct dt_scores *s)
{
    for (int k = 0; s && k < s->n; k++) {
        free(s->heads[k].values);
        free(s->heads[k].drawn);
        free(s->heads[k].records);
    }
    if (s)
        free(s->sums);
    free(s);
}

// ---- counting

// Maps a score to an integer with the same order; -0 and 0 are equal.
static uint32_t key_of(float score)
{
    uint32_t bits = dt_bits_of_float(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Records sort by score; records that compare equal are identical.
static uint64_t record(double score, bool is_of_class, double weight)
{
    return (uint64_t)key_of((float)score) << 32 | (is_of_class ? 0x80000000u : 0) |
           dt_bits_of_float((float)weight);
}

// Adds zeroed records for one more row, which have no weight.
static dt_status add_records(struct head *head, uint64_t **row)
{
    *row = NULL;
    if (head->lists == 0)
        return DT_OK;
    if (head->n == head->room) {
        int64_t room = dt_max_i64(2 * head->room, 1024);
        void *grown = realloc(head->records, (size_t)(room * head->lists) * sizeof *head->records);
        if (!grown)
            return DT_FAIL(DT_MACHINE, "lower log.eval_batches",
                           "no memory for the scores of %lld rows of head \"%s\"", (long long)room,
                           head->output->name);
        head->records = grown;
        head->room = room;
    }
    *row = head->records + head->n++ * head->lists;
    memset(*row, 0, (size_t)head->lists * sizeof **row);
    return DT_OK;
}

// Records the score of a class of more than two: the logarithm of its probability, precise even
// near 1.
static void record_one_of(const struct head *head, const float *z, int64_t actual, double weight,
                          uint64_t *row)
{
    int64_t n = head->classes, best = (int64_t)head->drawn[0];
    double others = 0;
    if (n == 2) {
        row[0] = record((double)z[1] - (double)z[0], actual == 1, weight);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        others += i == best ? 0 : exp((double)z[i] - (double)z[best]);
    for (int64_t i = 0; i < n; i++)
        row[i] = record((double)z[i] - (double)z[best] - log1p(others), actual == i, weight);
}

static dt_status count_classes(struct head *head, const float *z, const float *targets,
                               double weight)
{
    bool one_of = head->output->type->one_of;
    uint64_t *row;
    DT_TRY(add_records(head, &row));
    for (int64_t j = 0; j < head->columns; j++) {
        if (isnan(targets[j]))
            continue;
        int64_t actual = (int64_t)targets[j], predicted = (int64_t)head->drawn[j];
        struct dt_exact_sum *sums = head->sums + j * head->classes * CLASS_SUMS;
        if (actual == predicted)
            dt_exact_add(&sums[actual * CLASS_SUMS + FOUND], weight);
        dt_exact_add(&sums[actual * CLASS_SUMS + ACTUAL], weight);
        dt_exact_add(&sums[predicted * CLASS_SUMS + PREDICTED], weight);
        if (head->confusion > 0)
            dt_exact_add(&head->sums[head->confusion + actual * head->classes + predicted], weight);
        if (row && one_of)
            record_one_of(head, z, actual, weight, row);
        else if (row)
            row[j] = record((double)z[j], actual == 1, weight);
    }
    return DT_OK;
}

static void count_numbers(struct head *head, const float *targets, double weight)
{
    for (int64_t j = 0; j < head->columns; j++) {
        struct dt_exact_sum *sums = head->sums + j * NUMBER_SUMS;
        double t = (double)targets[j], error = (double)head->drawn[j] - t;
        if (isnan(t))
            continue;
        dt_exact_add(&sums[ALL], weight);
        dt_exact_add(&sums[ABSOLUTE], weight * fabs(error));
        dt_exact_add(&sums[SQUARE], weight * (error * error));
        dt_exact_add(&sums[TARGET], weight * t);
        dt_exact_add(&sums[TARGET_SQUARE], weight * (t * t));
    }
}

dt_status dt_scores_add(struct dt_scores *s, int k, const float *predicted, const float *targets,
                        double weight)
{
    struct head *head = &s->heads[k];
    struct dt_philox rng = dt_philox_init(0, 0, 0);
    int64_t present = 0;
    for (int64_t j = 0; j < head->columns; j++)
        present += !isnan(targets[j]);
    if (present == 0 || !(weight > 0))
        return DT_OK;
    for (int64_t i = 0; i < head->output->width; i++)
        if (!isfinite(predicted[i])) {
            dt_exact_add(&head->sums[0], NAN);
            return DT_OK;
        }
    head->output->type->draw(head->output, predicted, 0, &rng, head->drawn);
    if (head->classes > 0)
        return count_classes(head, predicted, targets, weight);
    count_numbers(head, targets, weight);
    return DT_OK;
}

// ---- AUC

// Radix sort from the least significant digit; skips digits that are all equal.
static void sort(uint64_t *x, uint64_t *other, int64_t n)
{
    uint64_t *from = x, *to = other;
    for (int shift = 0; shift < 64; shift += 8) {
        int64_t ends[257] = {0};
        for (int64_t i = 0; i < n; i++)
            ends[(from[i] >> shift & 255) + 1]++;
        if (ends[(from[0] >> shift & 255) + 1] == n)
            continue;
        for (int digit = 0; digit < 256; digit++)
            ends[digit + 1] += ends[digit];
        for (int64_t i = 0; i < n; i++)
            to[ends[from[i] >> shift & 255]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != x)
        memcpy(x, from, (size_t)n * sizeof *x);
}

// The area under the curve from sorted records: the weight of pairs in which a row of the class
// scores higher than another row (pairs with equal scores count half) over the weight of all pairs.
static double area(const uint64_t *records, int64_t n)
{
    double of_class = 0, others = 0, pairs = 0;
    for (int64_t i = 0, end; i < n; i = end) {
        double here[2] = {0};
        for (end = i; end < n && records[end] >> 32 == records[i] >> 32; end++) {
            here[records[end] >> 31 & 1] +=
                (double)dt_float_of_bits((uint32_t)records[end] & 0x7fffffffu);
        }
        pairs += here[1] * (others + here[0] / 2);
        of_class += here[1];
        others += here[0];
    }
    return of_class > 0 && others > 0 ? pairs / (of_class * others) : NAN;
}

struct mean {
    double sum;
    int64_t n;
};
// Adds x to the mean unless it is undefined.
static void include(struct mean *mean, double x)
{
    mean->sum += isnan(x) ? 0 : x;
    mean->n += !isnan(x);
}
static double value_of(struct mean mean)
{
    return mean.n > 0 ? mean.sum / (double)mean.n : NAN;
}

// Rank 0 receives one list after another from all ranks.
static dt_status gather_area(struct head *head, struct dt_comm *comm, const int64_t *counts,
                             int64_t total, uint64_t *all, uint64_t *spare)
{
    struct mean mean = {0};
    bool root = comm->info.rank == 0;
    for (int64_t list = 0; list < head->lists; list++) {
        int64_t at = head->n;
        for (int64_t i = 0; i < head->n; i++)
            all[i] = head->records[i * head->lists + list];
        if (!root && head->n > 0)
            DT_TRY(dt_exchange(comm, 0, all, NULL, head->n * (int64_t)sizeof *all));
        for (int rank = 1; root && rank < comm->info.size; at += counts[rank++])
            if (counts[rank] > 0)
                DT_TRY(
                    dt_exchange(comm, rank, NULL, all + at, counts[rank] * (int64_t)sizeof *all));
        if (!root)
            continue;
        dt_comm_busy(comm);
        sort(all, spare, total);
        include(&mean, area(all, total));
    }
    head->auc = value_of(mean);
    return DT_OK;
}

static dt_status compute_auc(struct head *head, struct dt_comm *comm)
{
    int64_t *counts, total = 0;
    uint64_t *all = NULL, *spare = NULL;
    int ranks = comm->info.size;
    dt_status status;
    DT_TRY(DT_NEW(&counts, ranks, "counts of %d ranks", ranks));
    counts[comm->info.rank] = head->n;
    DT_TRY_GOTO(status, out, dt_all_gather(comm, counts, sizeof *counts));
    for (int rank = 0; rank < ranks; rank++)
        total += counts[rank];
    if (total == 0)
        goto out;
    if (comm->info.rank != 0)
        total = head->n;
    status = DT_NEW(&all, total, "%lld scores", (long long)total);
    if (status == DT_OK && comm->info.rank == 0)
        status = DT_NEW(&spare, total, "%lld scores", (long long)total);
    DT_TRY_GOTO(status, out, dt_agree(comm, status));
    status = gather_area(head, comm, counts, total, all, spare);
out:
    free(counts);
    free(all);
    free(spare);
    return status;
}

// ---- the scores

static double balanced_accuracy(const struct head *head)
{
    struct mean columns = {0};
    for (int64_t j = 0; j < head->columns; j++) {
        struct mean classes = {0};
        for (int64_t c = 0; c < head->classes; c++) {
            const double *of = head->values + (j * head->classes + c) * CLASS_SUMS;
            include(&classes, of[FOUND] / of[ACTUAL]); // 0 / 0: the class has no rows
        }
        include(&columns, value_of(classes));
    }
    return value_of(columns);
}

static double f1(const struct head *head)
{
    struct mean columns = {0};
    for (int64_t j = 0; j < head->columns; j++) {
        struct mean classes = {0};
        for (int64_t c = head->classes == 2 ? 1 : 0; c < head->classes; c++) {
            const double *of = head->values + (j * head->classes + c) * CLASS_SUMS;
            include(&classes, 2 * of[FOUND] / (of[ACTUAL] + of[PREDICTED]));
        }
        include(&columns, value_of(classes));
    }
    return value_of(columns);
}

static double auc(const struct head *head)
{
    return head->auc;
}

static double mean_of(const struct head *head, int sum)
{
    double total = 0, all = 0;
    for (int64_t j = 0; j < head->columns; j++) {
        total += head->values[j * NUMBER_SUMS + sum];
        all += head->values[j * NUMBER_SUMS + ALL];
    }
    return total / all;
}

static double mae(const struct head *head)
{
    return mean_of(head, ABSOLUTE);
}

static double rmse(const struct head *head)
{
    return sqrt(mean_of(head, SQUARE));
}

static double r2(const struct head *head)
{
    struct mean columns = {0};
    for (int64_t j = 0; j < head->columns; j++) {
        const double *of = head->values + j * NUMBER_SUMS;
        double spread = of[TARGET_SQUARE] - of[TARGET] * of[TARGET] / of[ALL];
        // If all targets are equal, rounding may leave 1e-15 of the squares.
        if (spread > 1e-14 * of[TARGET_SQUARE])
            include(&columns, 1 - of[SQUARE] / spread);
    }
    return value_of(columns);
}

// The scores in the order of metrics.jsonl.
static const struct score {
    const char *name;
    bool classes; // for heads with classes; otherwise for heads that predict numbers
    double (*of)(const struct head *head);
} table[] = {
    {"balanced_accuracy", true, balanced_accuracy},
    {"f1", true, f1},
    {"auc", true, auc},
    {"mae", false, mae},
    {"rmse", false, rmse},
    {"r2", false, r2},
    {0},
};

dt_status dt_scores_finish(struct dt_scores *s, struct dt_comm *comm)
{
    for (int64_t i = 0; i < s->n_sums; i++)
        dt_exact_settle(&s->sums[i]);
    DT_TRY(dt_allreduce(comm, s->sums, s->n_sums * DT_EXACT_I64, DT_I64, DT_SUM));
    for (int k = 0; k < s->n; k++) {
        struct head *head = &s->heads[k];
        for (int64_t i = 0; i < head->n_sums; i++)
            head->values[i] = dt_exact_value(&head->sums[i]);
        if (head->lists > 0)
            DT_TRY(compute_auc(head, comm));
    }
    return DT_OK;
}

int dt_scores_of(const struct dt_scores *s, int k, struct dt_named_number list[DT_SCORES_MAX])
{
    const struct head *head = &s->heads[k];
    int n = 0;
    for (const struct score *score = table; score->name; score++)
        if (score->classes == (head->classes > 0))
            list[n++] = (struct dt_named_number){score->name,
                                                 isnan(head->values[0]) ? NAN : score->of(head)};
    return n;
}

const double *dt_scores_confusion(const struct dt_scores *s, int k)
{
    const struct head *head = &s->heads[k];
    return head->confusion > 0 ? head->values + head->confusion : NULL;
}
