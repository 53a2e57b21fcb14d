// Reads a trace written by train/timeline.h, and checks what readers of such files rely on.
#pragma once

#include "test.h"

#include <cjson/cJSON.h>

struct trace_event {
    long long rank, track;
    double begin, end; // microseconds
    const char *name;
};

static inline int trace_order(const void *x, const void *y)
{
    const struct trace_event *a = x, *b = y;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->track != b->track)
        return a->track < b->track ? -1 : 1;
    if (a->begin < b->begin || a->begin > b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end > b->end ? -1 : a->end < b->end;
}

static inline double trace_number(const cJSON *event, const char *field)
{
    const cJSON *number = cJSON_GetObjectItem(event, field);
    CHECK(cJSON_IsNumber(number), "an event has no %s", field);
    return number ? number->valuedouble : NAN;
}

// Returns the spans of a document in sorted order (malloc).
static inline struct trace_event *trace_spans(const cJSON *document, int *n)
{
    const cJSON *events = cJSON_GetObjectItem(document, "traceEvents"), *event;
    struct trace_event *spans = calloc((size_t)cJSON_GetArraySize(events) + 1, sizeof *spans);
    *n = 0;
    cJSON_ArrayForEach(event, events)
    {
        const char *kind = cJSON_GetStringValue(cJSON_GetObjectItem(event, "ph"));
        if (!kind || strcmp(kind, "X") != 0)
            continue;
        double begin = trace_number(event, "ts");
        spans[(*n)++] = (struct trace_event){
            (long long)trace_number(event, "pid"), (long long)trace_number(event, "tid"), begin,
            begin + trace_number(event, "dur"),
            cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"))};
    }
    qsort(spans, (size_t)*n, sizeof *spans, trace_order);
    return spans;
}

// Checks that every span of a track lies within the span that is open when it begins. Times are
// written in thousandths of a microsecond, and their sums are rounded further.
static inline void trace_check_nesting(const struct trace_event *spans, int n)
{
    enum { DEPTH = 64 };
    const double rounding = 1e-3;
    double ends[DEPTH];
    int depth = 0;
    for (int i = 0; i < n; i++) {
        if (i == 0 || spans[i].rank != spans[i - 1].rank || spans[i].track != spans[i - 1].track)
            depth = 0;
        while (depth > 0 && ends[depth - 1] <= spans[i].begin + rounding)
            depth--;
        CHECK(spans[i].begin >= 0 && spans[i].end >= spans[i].begin, "%s runs from %g to %g",
              spans[i].name, spans[i].begin, spans[i].end);
        CHECK(depth < DEPTH && (depth == 0 || spans[i].end <= ends[depth - 1] + rounding),
              "rank %lld, track %lld: %s ends at %.3f, after what it began in (%.3f)",
              spans[i].rank, spans[i].track, spans[i].name, spans[i].end,
              depth > 0 ? ends[depth - 1] : 0);
        if (depth < DEPTH)
            ends[depth++] = spans[i].end;
    }
}
