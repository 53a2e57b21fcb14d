// Every rank formats its events as text and sends it to rank 0, which writes the file. Before that
// the ranks compare their clocks with that of rank 0.
#include "train/timeline.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum track { COMPUTE, HOST, COMMUNICATION, INPUT, CHECKPOINT, TRACKS };
enum { LEVELS = 64, PARALLEL = 32, PINGS = 8 };

// ---- the events of a rank

struct placed {
    const struct dt_trace_span *span;
    enum track track;
};

// Ops nest in the phases of the track that runs them.
static enum track track_of(const struct dt_trace_span *span, bool has_device)
{
    switch (span->lane) {
    case DT_LANE_PHASE:
        return has_device ? HOST : COMPUTE;
    case DT_LANE_COMM:
    case DT_LANE_DEVICE_COMM:
        return COMMUNICATION;
    case DT_LANE_INPUT:
        return INPUT;
    case DT_LANE_CHECKPOINT:
        return CHECKPOINT;
    default:
        return COMPUTE;
    }
}

// An outer span comes before inner ones.
static int by_track_and_begin(const void *x, const void *y)
{
    const struct placed *a = x, *b = y;
    if (a->track != b->track)
        return a->track < b->track ? -1 : 1;
    if (a->span->begin != b->span->begin)
        return a->span->begin < b->span->begin ? -1 : 1;
    if (a->span->end != b->span->end)
        return a->span->end > b->span->end ? -1 : 1;
    return a->span->lane < b->span->lane ? -1 : a->span->lane > b->span->lane;
}

struct stack { // the ends of open spans, innermost last
    uint64_t ends[LEVELS];
    int n;
};

// The first parallel track on which the span nests, or the last track.
static int place(struct stack stacks[PARALLEL], const struct dt_trace_span *span)
{
    int i = 0;
    for (; i < PARALLEL; i++) {
        struct stack *stack = &stacks[i];
        while (stack->n > 0 && stack->ends[stack->n - 1] <= span->begin)
            stack->n--;
        if (stack->n < LEVELS && (stack->n == 0 || stack->ends[stack->n - 1] >= span->end)) {
            stack->ends[stack->n++] = span->end;
            break;
        }
    }
    return i < PARALLEL ? i : PARALLEL - 1;
}

static void print_track(FILE *f, int rank, enum track track, int parallel)
{
    static const char *const names[TRACKS] = {"compute", "host", "communication", "input",
                                              "checkpoint"};
    char number[16] = "";
    int tid = track * PARALLEL + parallel;
    if (parallel > 0)
        snprintf(number, sizeof number, " %d", parallel + 1);
    fprintf(f,
            "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":"
            "\"%s%s\"}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,"
            "\"args\":{\"sort_index\":%d}},\n",
            rank, tid, names[track], number, rank, tid, tid);
}

// Prints exact microseconds.
static void print_time(FILE *f, const char *field, uint64_t ns)
{
    fprintf(f, ",\"%s\":%llu.%03llu", field, (unsigned long long)(ns / 1000),
            (unsigned long long)(ns % 1000));
}

dt_status dt_timeline_text(const struct dt_trace_span *spans, int64_t n, int64_t shift, int rank,
                           char **text)
{
    size_t size;
    bool has_device = false;
    struct placed *all;
    DT_TRY(DT_NEW(&all, n, "a trace of %lld spans", (long long)n));
    FILE *f = open_memstream(text, &size);
    if (!f) {
        free(all);
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a trace of %lld spans", (long long)n);
    }
    for (int64_t i = 0; i < n; i++)
        has_device |= spans[i].lane == DT_LANE_DEVICE;
    for (int64_t i = 0; i < n; i++)
        all[i] = (struct placed){&spans[i], track_of(&spans[i], has_device)};
    qsort(all, (size_t)n, sizeof *all, by_track_and_begin);
    for (int track = 0; track < TRACKS; track++)
        if (track != HOST || has_device)
            print_track(f, rank, (enum track)track, 0);
    struct stack stacks[PARALLEL];
    int used = 0; // parallel tracks in use
    for (int64_t i = 0; i < n; i++) {
        const struct dt_trace_span *span = all[i].span;
        if (i == 0 || all[i].track != all[i - 1].track) {
            memset(stacks, 0, sizeof stacks);
            used = 1;
        }
        int parallel = place(stacks, span);
        for (; used <= parallel; used++)
            print_track(f, rank, all[i].track, used);
        fprintf(f, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\"", rank,
                all[i].track * PARALLEL + parallel, span->name);
        print_time(f, "ts", span->begin + (uint64_t)shift);
        print_time(f, "dur", span->end - span->begin);
        if (span->bytes > 0)
            fprintf(f, ",\"args\":{\"bytes\":%.0f}", span->bytes);
        fprintf(f, "},\n");
    }
    fprintf(
        f, "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
        rank, rank);
    fclose(f);
    free(all);
    return DT_OK;
}

// ---- all ranks

// *shift: added to the clock of `peer` to get that of rank 0. Taken from the fastest of several
// round trips, so its error is at most half of that time.
static dt_status compare_clocks(struct dt_comm *comm, int peer, int64_t *shift)
{
    uint64_t least = UINT64_MAX, now = 0;
    bool asks = comm->info.rank == 0;
    for (int i = 0; i < PINGS; i++) {
        uint64_t before = dt_nanoseconds();
        if (!asks) {
            DT_TRY(dt_exchange(comm, 0, NULL, &now, sizeof now));
            now = dt_nanoseconds();
            DT_TRY(dt_exchange(comm, 0, &now, NULL, sizeof now));
            continue;
        }
        DT_TRY(dt_exchange(comm, peer, &before, NULL, sizeof before));
        DT_TRY(dt_exchange(comm, peer, NULL, &now, sizeof now));
        uint64_t took = dt_nanoseconds() - before;
        if (took >= least)
            continue;
        least = took;
        *shift = (int64_t)(before + took / 2 - now);
    }
    return dt_exchange(comm, asks ? peer : 0, asks ? shift : NULL, asks ? NULL : shift,
                       sizeof *shift);
}

// Appends the texts of other ranks one at a time, since each may have many megabytes.
static dt_status gather(struct dt_comm *comm, const char *mine, FILE *file)
{
    int64_t bytes = (int64_t)strlen(mine);
    if (comm->info.rank > 0) {
        DT_TRY(dt_exchange(comm, 0, &bytes, NULL, sizeof bytes));
        return dt_exchange(comm, 0, mine, NULL, bytes);
    }
    for (int peer = 1; peer < comm->info.size; peer++) {
        char *text;
        DT_TRY(dt_exchange(comm, peer, NULL, &bytes, sizeof bytes));
        DT_TRY(DT_NEW(&text, bytes, "the trace of rank %d", peer));
        dt_status status = dt_exchange(comm, peer, NULL, text, bytes);
        if (file) {
            fputs(",\n", file);
            fwrite(text, 1, (size_t)bytes, file);
        }
        free(text);
        DT_TRY(status);
    }
    return DT_OK;
}

static dt_status describe(struct dt_comm *comm, int64_t shift, char **text)
{
    const struct dt_trace_span *spans;
    int64_t lost, n = dt_trace_spans(&spans, &lost);
    int64_t first = INT64_MAX; // on rank 0's clock
    char *events;
    if (lost > 0)
        dt_warn("the trace of rank %d is missing its last %lld spans: trace fewer steps",
                comm->info.rank, (long long)lost);
    for (int64_t i = 0; i < n; i++)
        if ((int64_t)spans[i].begin + shift < first)
            first = (int64_t)spans[i].begin + shift;
    DT_TRY(dt_allreduce(comm, &first, 1, DT_I64, DT_MIN));
    DT_TRY(dt_agree(comm, dt_timeline_text(spans, n, shift - first, comm->info.rank, &events)));
    dt_status status =
        dt_memory_text(text,
                       "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":"
                       "\"rank %d on %s\"}},\n%s",
                       comm->info.rank, comm->info.rank, comm->info.host, events);
    free(events);
    return dt_agree(comm, status);
}

dt_status dt_timeline_write(struct dt_comm *comm, const char *path)
{
    int64_t shift = 0, of_peer;
    char *text;
    bool root = comm->info.rank == 0;
    if (!root)
        DT_TRY(compare_clocks(comm, comm->info.rank, &shift));
    for (int peer = 1; root && peer < comm->info.size; peer++)
        DT_TRY(compare_clocks(comm, peer, &of_peer));
    DT_TRY(describe(comm, shift, &text));
    FILE *file = root ? fopen(path, "w") : NULL;
    int problem = root && !file ? errno : 0;
    if (file)
        fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n%s", text);
    dt_status status = gather(comm, text, file);
    free(text);
    if (file) {
        fputs("\n]}\n", file);
        bool failed = ferror(file);
        if (fclose(file) != 0)
            problem = errno;
        else if (failed) // an earlier write failed, whose errno is lost
            problem = EIO;
    }
    if (problem != 0)
        dt_warn("cannot write the trace %s: %s", path, strerror(problem));
    else if (root)
        dt_info("trace: %s (open it in ui.perfetto.dev)", path);
    return status;
}
