// Writes metrics to stderr: one live line on a terminal, elsewhere a plain line every `every`
// steps.
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "train/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct console {
    struct dt_metrics_config config;
    bool live;
    double start;        // time of the first step seen
    double tokens_per_s; // smoothed
};

// The parts of a step's line, from left to right.
enum { STEP, LIVE_ETA, LOSS, ACCURACY, NORM, RATE, SPEED, FLOPS, ETA, SKIPPED, PARTS };
enum { PART_TEXT = 64 };

static dt_status open_console(const struct dt_metrics_config *config, void **state)
{
    struct console *c;
    DT_TRY(DT_NEW(&c, 1, "the console"));
    c->config = *config;
    if (config->console == DT_CONSOLE_PROGRESS)
        dt_log_assume_terminal();
    c->live = config->console != DT_CONSOLE_PLAIN && dt_log_is_terminal();
    *state = c;
    return DT_OK;
}

static void close_console(void *state)
{
    dt_log_live(NULL);
    free(state);
}

// At least four significant digits, and at most as many decimals as a loss near 1 needs.
enum { NUMBER_TEXT = 32 };
static const char *number_text(double value, char text[NUMBER_TEXT])
{
    bool plain = value == 0 || (fabs(value) >= 0.1 && fabs(value) < 1e6);
    snprintf(text, NUMBER_TEXT, plain ? "%.4f" : "%.4g", value);
    return text;
}

// Formats the measure of a head: an accuracy as "0.812", or an error in any unit.
static const char *measure_text(const char *measure, double value, char text[NUMBER_TEXT])
{
    if (strcmp(measure, "accuracy") != 0)
        return number_text(value, text);
    snprintf(text, NUMBER_TEXT, "%.3f", value);
    return text;
}

// Formats "accuracy 0.812", the mean over heads with accuracy, or the mean of their errors.
static void format_accuracy(const struct dt_metric_event *e, char text[PART_TEXT])
{
    static const char *const measures[] = {"accuracy", "error"};
    for (int i = 0, n = 0; e->heads && n == 0 && i < 2; i++) {
        double sum = 0;
        for (int k = 0; k < e->heads->n; k++) {
            struct dt_head_metrics head = dt_head_metrics(e->heads, e->sum, k);
            if (strcmp(head.measure, measures[i]) == 0 && !isnan(head.value))
                sum += head.value, n++;
        }
        char number[NUMBER_TEXT];
        if (n > 0)
            snprintf(text, PART_TEXT, "%s %s", measures[i],
                     measure_text(measures[i], sum / n, number));
    }
}

// Joins the non-empty parts in order. If they do not all fit into `columns`, the first ones of
// `important` are kept.
static void join(char *text, size_t size, int columns, char parts[][PART_TEXT],
                 const int *important, int n)
{
    bool kept[PARTS] = {false};
    for (int i = 0; i < n; i++) {
        int width = dt_text_width(parts[important[i]]);
        width += i > 0 && width > 0 ? 2 : 0; // between parts
        kept[important[i]] = i == 0 || width <= columns;
        columns -= kept[important[i]] ? width : 0;
    }
    text[0] = 0;
    for (int i = 0; i < n; i++)
        if (kept[i] && parts[i][0] != 0)
            dt_append(text, size, "%s%s", text[0] ? "  " : "", parts[i]);
}

static void show_step(struct console *c, const struct dt_metric_event *e)
{
    int64_t done = e->step - c->config.first_step, left = c->config.steps - e->step;
    bool live = c->live && left > 0; // the last step is a plain line, which stays
    char parts[PARTS][PART_TEXT] = {""}, text[PARTS * PART_TEXT], number[NUMBER_TEXT],
         eta[DT_DURATION_TEXT];
    // The ETA ignores the first step, which includes warm-up of caches and libraries.
    if (done == 0)
        c->start = dt_seconds();
    else
        snprintf(parts[live ? LIVE_ETA : ETA], PART_TEXT, "ETA %s",
                 dt_duration((dt_seconds() - c->start) / (double)done * (double)left, eta));
    c->tokens_per_s = done <= 1 ? e->tokens_per_s : 0.9 * c->tokens_per_s + 0.1 * e->tokens_per_s;
    snprintf(parts[STEP], PART_TEXT, "step %lld/%lld", (long long)e->step,
             (long long)c->config.steps);
    snprintf(parts[LOSS], PART_TEXT, "loss %s", number_text(e->loss, number));
    format_accuracy(e, parts[ACCURACY]);
    snprintf(parts[NORM], PART_TEXT, "norm %.3g", e->grad_norm);
    snprintf(parts[RATE], PART_TEXT, "lr %.3g", e->lr);
    snprintf(parts[SPEED], PART_TEXT, "%.0f %s/s", c->tokens_per_s, c->config.unit);
    snprintf(parts[FLOPS], PART_TEXT, "%.1f GFLOP/s",
             c->tokens_per_s * c->config.flops_per_token * 1e-9);
    if (e->skipped)
        snprintf(parts[SKIPPED], PART_TEXT, "SKIPPED");
    static const int important[PARTS] = {STEP,     LOSS,  SKIPPED, LIVE_ETA, ETA,
                                         ACCURACY, SPEED, NORM,    RATE,     FLOPS};
    join(text, sizeof text, dt_log_columns() - (live ? 1 : (int)strlen("dtrain: ")), parts,
         important, PARTS);
    if (c->live)
        dt_log_live(live ? text : NULL);
    if (live)
        return;
    if (e->step % c->config.every == 0 || left == 0 || done == 0)
        dt_info("%s", text);
}

static void show_evaluation(const struct console *c, const struct dt_metric_event *e)
{
    char ema[64] = "", perplexity[64] = "", heads[2048] = "", number[NUMBER_TEXT];
    if (e->has_ema)
        snprintf(ema, sizeof ema, " (moving average %s)", number_text(e->ema_loss, number));
    if (e->has_perplexity)
        snprintf(perplexity, sizeof perplexity, "  perplexity %.3f", e->perplexity);
    for (int k = 0; e->heads && k < e->heads->n; k++) {
        struct dt_head_metrics head = dt_head_metrics(e->heads, e->sum, k);
        dt_append(heads, sizeof heads, "%s%s %s %s", k > 0 ? ", " : "  ", head.name, head.measure,
                  measure_text(head.measure, head.value, number));
    }
    dt_info("step %lld  validation loss %s%s%s%s  over %lld %s", (long long)e->step,
            number_text(e->loss, number), ema, perplexity, heads, (long long)e->tokens,
            c->config.unit);
}

static dt_status write_event(void *state, const struct dt_metric_event *e)
{
    if (e->kind == DT_METRIC_TRAIN)
        show_step(state, e);
    else if (e->kind == DT_METRIC_EVAL)
        show_evaluation(state, e);
    else if (e->kind == DT_METRIC_CHECKPOINT)
        dt_info("step %lld  checkpoint %s", (long long)e->step, e->path);
    return DT_OK;
}

const struct dt_metric_sink dt_sink_console = {
    .open = open_console, .write = write_event, .close = close_console};
