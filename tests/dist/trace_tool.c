// trace_tool FILE RANKS TRACK:SPAN …: checks that the trace is JSON, that its spans nest, that the
// clocks of all ranks agree, and that every rank has a span of each name on a track of that name.
// "TRACK:" asks for the track alone, and "0/TRACK:SPAN" looks at rank 0 only.
#include "trace_events.h"

// Whether a track of `rank` whose name begins with `track` has a span of that name.
static int has(const cJSON *document, const struct trace_event *spans, int n, int rank,
               const char *track, size_t length, const char *name)
{
    const cJSON *event;
    cJSON_ArrayForEach(event, cJSON_GetObjectItem(document, "traceEvents"))
    {
        const char *what = cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"));
        const cJSON *args = cJSON_GetObjectItem(event, "args");
        const char *called = cJSON_GetStringValue(cJSON_GetObjectItem(args, "name"));
        if (strcmp(what, "thread_name") != 0 || strncmp(called, track, length) != 0 ||
            (int)trace_number(event, "pid") != rank)
            continue;
        if (!name[0])
            return 1;
        for (int i = 0; i < n; i++)
            if (spans[i].rank == rank && spans[i].track == (int)trace_number(event, "tid") &&
                strcmp(spans[i].name, name) == 0)
                return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    char *text = NULL;
    size_t room = 0;
    FILE *file = fopen(argv[1], "r");
    if (!file || getdelim(&text, &room, 0, file) < 0) {
        perror(argv[1]);
        return 2;
    }
    fclose(file);
    cJSON *document = cJSON_ParseWithOpts(text, NULL, 1);
    CHECK(document, "%s is not JSON", argv[1]);
    free(text);
    int n, ranks = atoi(argv[2]);
    struct trace_event *spans = trace_spans(document, &n);
    trace_check_nesting(spans, n);
    for (int i = 3; i < argc; i++) {
        int root = strncmp(argv[i], "0/", 2) == 0;
        const char *track = argv[i] + 2 * root;
        size_t length = strcspn(track, ":");
        for (int rank = 0; rank < (root ? 1 : ranks); rank++)
            CHECK(has(document, spans, n, rank, track, length, track + length + 1),
                  "rank %d has no %s", rank, argv[i]);
    }
    CHECK(n > 0 && spans[n - 1].rank == ranks - 1, "%d spans, not of %d ranks", n, ranks);
    // Ranks enter a step within a second of each other, even on a busy machine.
    for (int i = 0; i < n; i++)
        if (i == 0 || spans[i].rank != spans[i - 1].rank)
            CHECK(spans[i].begin < 1e6, "the clock of rank %lld is %.0f s ahead", spans[i].rank,
                  spans[i].begin / 1e6);
    free(spans);
    cJSON_Delete(document);
    return test_end();
}
