// The table of the fields of events, and the writing of an event to all sinks.
#include "train/metrics.h"

#include "base/memory.h"

enum {
    TRAIN = DT_METRIC_TRAIN,
    EVAL = DT_METRIC_EVAL,
    CHECKPOINT = DT_METRIC_CHECKPOINT,
    ROLLBACK = DT_METRIC_ROLLBACK
};
#define FIELD_OF(kinds, type, name, flag, group)                                                   \
    {                                                                                              \
#name, kinds, DT_VALUE_##type, offsetof(struct dt_metric_event, name), flag, group         \
    }
#define FIELD_IF(kinds, type, name, flag) FIELD_OF(kinds, type, name, flag, NULL)
#define FIELD(kinds, type, name)          FIELD_OF(kinds, type, name, 0, NULL)
#define SPEED(name)                       FIELD_OF(TRAIN, NUMBER, name, 0, "throughput")

// The fields in the order of metrics.jsonl.
const struct dt_metric_field dt_metric_fields[] = {
    FIELD(TRAIN | EVAL | CHECKPOINT | ROLLBACK, INT, step),
    FIELD(TRAIN, INT, epoch),
    FIELD(TRAIN | EVAL, NUMBER, loss),
    FIELD_IF(EVAL, NUMBER, perplexity, offsetof(struct dt_metric_event, has_perplexity)),
    FIELD_IF(EVAL, NUMBER, accuracy, offsetof(struct dt_metric_event, has_perplexity)),
    FIELD_IF(EVAL, NUMBER, ema_loss, offsetof(struct dt_metric_event, has_ema)),
    FIELD(TRAIN, NUMBER, grad_norm),
    FIELD(TRAIN, NUMBER, lr),
    FIELD(TRAIN | EVAL, INT, tokens),
    SPEED(step_ms),
    SPEED(tokens_per_s),
    SPEED(data_wait_ms),
    SPEED(comm_wait_ms),
    SPEED(idle_ms),
    FIELD_OF(TRAIN, NUMBER, memory_mb, 0, "memory"),
    FIELD(TRAIN, NUMBER, loss_z),
    FIELD(TRAIN, FLAG, skipped),
    FIELD(ROLLBACK, INT, from),
    FIELD(ROLLBACK, TEXT, left_out),
    FIELD(CHECKPOINT, TEXT, path),
    FIELD(CHECKPOINT, NUMBER, stall_ms),
    FIELD(CHECKPOINT, NUMBER, write_ms),
    {0},
};

const char *dt_metric_name(enum dt_metric_kind kind)
{
    static const char *const names[] = {
        [TRAIN] = "train", [EVAL] = "eval", [CHECKPOINT] = "checkpoint", [ROLLBACK] = "rollback"};
    return names[kind];
}

bool dt_metric_has(const struct dt_metric_event *event, const struct dt_metric_field *field)
{
    const bool *flag = (const bool *)((const char *)event + field->only_if);
    return (field->kinds & event->kind) && (field->only_if == 0 || *flag);
}

int dt_head_numbers(const struct dt_outputs *heads, const struct dt_loss_sum *sum,
                    const struct dt_scores *scores, int k,
                    struct dt_named_number list[DT_HEAD_NUMBERS])
{
    struct dt_head_metrics head = dt_head_metrics(heads, sum, k);
    list[0] = (struct dt_named_number){"loss", head.loss};
    list[1] = (struct dt_named_number){head.measure, head.value};
    return 2 + (scores ? dt_scores_of(scores, k, list + 2) : 0);
}

int dt_source_numbers(const struct dt_metric_event *event, int i,
                      struct dt_named_number list[DT_SOURCE_NUMBERS])
{
    int n = 0;
    if (event->losses) {
        const struct dt_loss_part *part = &event->losses[i];
        double mean = part->counted > 0 ? part->loss / part->counted : (double)NAN;
        list[n++] = (struct dt_named_number){"loss", mean};
        list[n++] = (struct dt_named_number){"tokens", part->counted};
    }
    if (event->epochs)
        list[n++] = (struct dt_named_number){"epochs", event->epochs[i]};
    return n;
}

struct dt_metrics {
    int n;          // sinks that were opened
    void *states[]; // [sinks], in the order of the table; NULL: not used
};

dt_status dt_metrics_open(const struct dt_metrics_config *config, struct dt_metrics **out)
{
    size_t n = 0;
    while (dt_metric_sinks[n])
        n++;
    struct dt_metrics *m;
    dt_status status;
    DT_TRY(DT_NEW_BYTES(&m, sizeof *m + n * sizeof *m->states, "metrics"));
    for (; dt_metric_sinks[m->n]; m->n++)
        DT_TRY_GOTO(status, fail, dt_metric_sinks[m->n]->open(config, &m->states[m->n]));
    *out = m;
    return DT_OK;
fail:
    dt_metrics_close(m);
    return status;
}

dt_status dt_metrics_write(struct dt_metrics *m, const struct dt_metric_event *event)
{
    for (int i = 0; m && i < m->n; i++)
        if (m->states[i])
            DT_TRY(dt_error_during_run(dt_metric_sinks[i]->write(m->states[i], event)));
    return DT_OK;
}

dt_status dt_metrics_sync(struct dt_metrics *m)
{
    for (int i = 0; m && i < m->n; i++)
        if (m->states[i] && dt_metric_sinks[i]->sync)
            DT_TRY(dt_metric_sinks[i]->sync(m->states[i]));
    return DT_OK;
}

void dt_metrics_close(struct dt_metrics *m)
{
    for (int i = 0; m && i < m->n; i++)
        if (m->states[i])
            dt_metric_sinks[i]->close(m->states[i]);
    free(m);
}
