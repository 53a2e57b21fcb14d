// Optimizer files: written and read in pieces, in any split.
#include "checkpoint/optimizer_states.h"

#include "base/file.h"
#include "base/finite.h"
#include "base/list.h"
#include "base/round.h"
#include "base/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { ENTRY_NAME = DT_PARAM_NAME + 64, FILES_MAX = 99999, STAMP_TEXT = 24 };

float *dt_optimizer_state(const struct dt_optimizer_states *states, const char *name)
{
    for (int i = 0; i < states->n; i++)
        if (strcmp(states->list[i].name, name) == 0)
            return states->list[i].data;
    return NULL;
}

static void file_name(char name[DT_MANIFEST_NAME], const char *prefix, int part, int parts)
{
    snprintf(name, DT_MANIFEST_NAME, "%s-%05d-of-%05d.safetensors", prefix, part + 1, parts);
}

dt_status dt_states_file(char path[DT_PATH], const char *folder, const char *prefix, int part,
                         int parts)
{
    char name[DT_MANIFEST_NAME];
    file_name(name, prefix, part, parts);
    return dt_path(path, "%s/%s", folder, name);
}

struct range { // elements [first, last) of a tensor's state
    int state, row;
    int64_t first, last;
    int64_t at; // in the compact array
};

static void range_name(char name[ENTRY_NAME], const struct range *range,
                       const struct dt_params *params, const struct dt_optimizer_states *states)
{
    snprintf(name, ENTRY_NAME, "%s.%s[%lld:%lld]", states->list[range->state].name,
             params->rows[range->row].name, (long long)range->first, (long long)range->last);
}

// Calls `visit` for each part of [first, end) of the flat array that the pieces up to n hold, at
// its place in the compact array.
typedef dt_status part_visit(void *context, int64_t first, int64_t end, int64_t at);
static dt_status visit_parts(const struct dt_pieces *pieces, int64_t n, int64_t first, int64_t end,
                             part_visit *visit, void *context)
{
    int64_t at = 0; // of the piece
    for (int64_t i = 0; i < n; i++) {
        const struct dt_span *span = &pieces->spans[i];
        int64_t from = dt_max_i64(first, span->first), to = dt_min_i64(end, span->end);
        if (from < to)
            DT_TRY(visit(context, from, to, at + from - span->first));
        at += span->end - span->first;
    }
    return DT_OK;
}

// Writing: for each state, in the order of the table, the ranges of all rows.

struct ranges {
    const struct dt_params *params;
    int state, row;
    int64_t n;
    struct range *list;
};

static dt_status add_range(void *context, int64_t first, int64_t end, int64_t at)
{
    struct ranges *r = context;
    int64_t offset = r->params->rows[r->row].offset;
    DT_TRY(dt_list_grow(&r->list, r->n, sizeof *r->list));
    r->list[r->n++] = (struct range){r->state, r->row, first - offset, end - offset, at};
    return DT_OK;
}

static dt_status list_ranges(struct ranges *r, const struct dt_optimizer_states *states, int part)
{
    const struct dt_pieces *pieces = &states->pieces;
    for (r->state = 0; r->state < states->n; r->state++)
        for (r->row = 0; r->row < r->params->n; r->row++) {
            const struct dt_param *row = &r->params->rows[r->row];
            DT_TRY(visit_parts(pieces, part == 0 ? pieces->n : pieces->n_own, row->offset,
                               row->offset + row->file_count, add_range, r));
        }
    return DT_OK;
}

struct stamp_text {
    char step[STAMP_TEXT], run[STAMP_TEXT];
};

static struct stamp_text stamp_text(const struct dt_part_stamp *stamp)
{
    struct stamp_text text;
    snprintf(text.step, sizeof text.step, "%lld", (long long)stamp->step);
    snprintf(text.run, sizeof text.run, "%016llx", (unsigned long long)stamp->run);
    return text;
}

static dt_status create_file(const char *path, const struct ranges *ranges,
                             const struct dt_optimizer_states *states,
                             const struct dt_part_stamp *stamp,
                             struct dt_safetensors_writer **writer)
{
    const struct stamp_text text = stamp_text(stamp);
    const char *const metadata[] = {"run", text.run, "step", text.step};
    int n = (int)ranges->n;
    char(*names)[ENTRY_NAME] = calloc((size_t)n + 1, sizeof *names);
    struct dt_safetensors_entry *entries = calloc((size_t)n + 1, sizeof *entries);
    dt_status status = DT_OK;
    if (!names || !entries)
        status = DT_FAIL(DT_MACHINE, NULL, "no memory for the names of %d optimizer states", n);
    for (int i = 0; i < n && status == DT_OK; i++) {
        const struct range *range = &ranges->list[i];
        range_name(names[i], range, ranges->params, states);
        entries[i] = (struct dt_safetensors_entry){
            .name = names[i], .dtype = DT_F32, .n_dims = 1, .shape = {range->last - range->first}};
    }
    if (status == DT_OK)
        status = dt_safetensors_create(path, entries, n, metadata, 2, writer);
    free(names);
    free(entries);
    return status;
}

static dt_status write_ranges(const char *path, const struct ranges *ranges,
                              const struct dt_optimizer_states *states,
                              const struct dt_part_stamp *stamp, struct dt_manifest_file *file)
{
    struct dt_safetensors_writer *writer;
    dt_status status;
    DT_TRY(create_file(path, ranges, states, stamp, &writer));
    for (const struct range *r = ranges->list; r < ranges->list + ranges->n; r++)
        DT_TRY_GOTO(status, discard,
                    dt_safetensors_write(writer, states->list[r->state].data + r->at,
                                         (r->last - r->first) * (int64_t)sizeof(float)));
    return dt_safetensors_finish(writer, &file->size, &file->hash);
discard:
    dt_safetensors_discard(writer);
    return status;
}

dt_status dt_optimizer_states_write(const char *folder, const char *prefix, int part, int parts,
                                    const struct dt_params *params,
                                    const struct dt_optimizer_states *states,
                                    const struct dt_part_stamp *stamp,
                                    struct dt_manifest_file *file)
{
    char path[DT_PATH];
    struct ranges ranges = {.params = params};
    file_name(file->name, prefix, part, parts);
    DT_TRY(dt_states_file(path, folder, prefix, part, parts));
    dt_status status = list_ranges(&ranges, states, part);
    if (status == DT_OK)
        status = write_ranges(path, &ranges, states, stamp, file);
    free(ranges.list);
    return status;
}

// As the first listed one says.
int dt_optimizer_states_files(const struct dt_manifest *manifest)
{
    const char *prefix = DT_OPTIMIZER_FILES "-00001-of-";
    for (int i = 0; i < manifest->n; i++) {
        const char *name = manifest->files[i].name;
        int n = strncmp(name, prefix, strlen(prefix)) == 0 ? atoi(name + strlen(prefix)) : 0;
        if (n > 0 && n <= FILES_MAX)
            return n;
    }
    return 0;
}

void dt_optimizer_states_check_names(const struct dt_manifest *manifest,
                                     struct dt_problems *problems)
{
    int n = dt_optimizer_states_files(manifest);
    char name[DT_MANIFEST_NAME];
    if (n == 0)
        dt_problems_add(problems, "MANIFEST lists no optimizer-00001-of-….safetensors");
    for (int i = 0; i < n; i++) {
        file_name(name, DT_OPTIMIZER_FILES, i, n);
        if (!dt_manifest_find(manifest, name))
            dt_problems_add(problems, "MANIFEST lacks %s", name);
    }
}

// Reading: every entry is checked and read, then the ranges must cover all.

struct reader {
    const struct dt_params *params;
    const struct dt_optimizer_states *states;
    const struct dt_part_stamp *stamp; // NULL: any
    int files, stamped;                // read so far; those with a stamp
    int64_t n;
    struct range *ranges; // seen so far; the last one is of the entry being read:
    const struct dt_safetensors *file;
    const struct dt_safetensor *entry;
    int64_t start; // in the flat array
};

static dt_status read_part(void *reader, int64_t first, int64_t end, int64_t at)
{
    const struct reader *r = reader;
    const struct range *range = &r->ranges[r->n - 1];
    const struct dt_optimizer_state *state = &r->states->list[range->state];
    int64_t n = end - first;
    DT_TRY(dt_safetensors_read_f32(r->file, r->entry, first - r->start, n, state->data + at));
    int64_t bad = state->squares
                      ? dt_find_outside(state->data + at, n, 0, INFINITY) // it may overflow
                      : dt_find_outside(state->data + at, n, -FLT_MAX, FLT_MAX);
    if (bad == n || state->weights) // weights: checked where a model is made of them
        return DT_OK;
    return DT_FAIL(DT_USER, "use another checkpoint: this one's values are damaged",
                   "%s: %s.%s holds %g at element %lld; all must be %s", r->file->path, state->name,
                   r->params->rows[range->row].name, (double)state->data[at + bad],
                   (long long)(range->first + first - r->start + bad),
                   state->squares ? "0 or more" : "finite");
}

// A name that does not come out the same again is none of dtrain's.
static bool parse_name(const struct reader *r, const char *name, struct range *range)
{
    char again[ENTRY_NAME];
    const char *dot = strchr(name, '.'), *bracket = strrchr(name, '[');
    if (!dot || !bracket || bracket <= dot)
        return false;
    size_t state = (size_t)(dot - name), tensor = (size_t)(bracket - ++dot);
    char *end;
    range->first = strtoll(bracket + 1, &end, 10);
    range->last = *end == ':' ? strtoll(end + 1, NULL, 10) : 0;
    for (range->state = 0; range->state < r->states->n; range->state++)
        if (strlen(r->states->list[range->state].name) == state &&
            memcmp(r->states->list[range->state].name, name, state) == 0)
            break;
    for (range->row = 0; range->row < r->params->n; range->row++)
        if (strlen(r->params->rows[range->row].name) == tensor &&
            memcmp(r->params->rows[range->row].name, dot, tensor) == 0)
            break;
    if (range->state == r->states->n || range->row == r->params->n)
        return false;
    range_name(again, range, r->params, r->states);
    return strcmp(name, again) == 0 && range->first >= 0 && range->first < range->last;
}

static dt_status check_entry(const struct reader *r, const char *path,
                             const struct dt_safetensor *entry, struct range *range)
{
    const char *hint = "the checkpoint was written by another program, or for another model";
    if (!parse_name(r, entry->name, range))
        return DT_FAIL(DT_USER, hint, "%s: %.200s is not a range of this model's optimizer states",
                       path, entry->name);
    if (entry->dtype != DT_F32 || entry->n_dims != 1 ||
        entry->shape[0] != range->last - range->first)
        return DT_FAIL(DT_USER, hint, "%s: %.200s must be fp32 of one dimension, as its name says",
                       path, entry->name);
    if (range->last > r->params->rows[range->row].file_count)
        return DT_FAIL(DT_USER, hint, "%s: %.200s ends after the tensor's %lld elements", path,
                       entry->name, (long long)r->params->rows[range->row].file_count);
    return DT_OK;
}

// A part of another checkpoint would train on without a word, however right its checksum.
static dt_status check_stamp(struct reader *r, const struct dt_safetensors *file)
{
    const char *hint = "restore the files of one checkpoint, or use another checkpoint";
    const char *step = dt_safetensors_metadata(file, "step"),
               *run = dt_safetensors_metadata(file, "run");
    if (!r->stamp)
        return DT_OK;
    const struct stamp_text want = stamp_text(r->stamp);
    r->files++;
    r->stamped += step && run;
    if (r->stamped != 0 && r->stamped != r->files)
        return DT_FAIL(DT_USER, hint, "%s and the other optimizer files are not of one checkpoint",
                       file->path);
    if (step && run && strcmp(step, want.step) != 0)
        return DT_FAIL(DT_USER, hint, "%s is of step %.20s, trainer.json beside it of step %s",
                       file->path, step, want.step);
    if (step && run && strcmp(run, want.run) != 0)
        return DT_FAIL(DT_USER, hint, "%s is of another run than trainer.json beside it",
                       file->path);
    return DT_OK;
}

static dt_status read_file(struct reader *r, const char *path)
{
    struct dt_safetensors *file;
    dt_status status;
    DT_TRY(dt_safetensors_open(path, &file));
    DT_TRY_GOTO(status, out, check_stamp(r, file));
    for (int i = 0; i < file->n_tensors; i++) {
        const struct dt_safetensor *entry = &file->tensors[i];
        struct range range;
        DT_TRY_GOTO(status, out, check_entry(r, path, entry, &range));
        DT_TRY_GOTO(status, out, dt_list_grow(&r->ranges, r->n, sizeof range));
        r->ranges[r->n++] = range;
        r->file = file;
        r->entry = entry;
        r->start = r->params->rows[range.row].offset + range.first;
        DT_TRY_GOTO(status, out,
                    visit_parts(&r->states->pieces, r->states->pieces.n, r->start,
                                r->start + entry->count, read_part, r));
    }
    status = DT_OK;
out:
    dt_safetensors_close(file);
    return status;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

// Sorted, the ranges of each tensor's states must follow one on another.
static dt_status check_cover(const struct reader *r, const char *folder)
{
    struct dt_problems problems = {0};
    const struct range *next = r->ranges, *past = r->ranges + r->n;
    if (r->n > 0)
        qsort(r->ranges, (size_t)r->n, sizeof *r->ranges, compare_ranges);
    for (int i = 0; i < r->params->n * r->states->n; i++) {
        int row = i / r->states->n, state = i % r->states->n;
        const struct dt_param *param = &r->params->rows[row];
        const struct range *start = next;
        int64_t end = 0;
        bool follows = true;
        for (; next < past && next->row == row && next->state == state; next++) {
            follows = follows && next->first == end;
            end = next->last;
        }
        const char *name = r->states->list[state].name;
        if (next == start)
            dt_problems_add(&problems, "%s.%s is missing", name, param->name);
        else if (!follows || end != param->file_count)
            dt_problems_add(&problems,
                            "%s.%s: its ranges leave out or repeat some of %lld elements", name,
                            param->name, (long long)param->file_count);
    }
    return dt_problems_report(&problems, "use another checkpoint",
                              "the optimizer files of %s are incomplete", folder);
}

// One file open at a time: a set may have more than a process may open.
dt_status dt_optimizer_states_read(const char *folder, const char *prefix, int n,
                                   const struct dt_params *params,
                                   const struct dt_optimizer_states *states,
                                   const struct dt_part_stamp *stamp)
{
    struct reader reader = {.params = params, .states = states, .stamp = stamp};
    char path[DT_PATH];
    dt_status status = DT_OK;
    for (int i = 0; i < states->n; i++)
        memset(states->list[i].data, 0, (size_t)states->pieces.elements * sizeof(float));
    for (int i = 0; i < n && status == DT_OK; i++) {
        status = dt_states_file(path, folder, prefix, i, n);
        if (status == DT_OK)
            status = read_file(&reader, path);
    }
    if (status == DT_OK)
        status = check_cover(&reader, folder);
    free(reader.ranges);
    return status;
}

struct pick {
    const float *whole;
    float *compact;
};

static dt_status pick_part(void *arrays, int64_t first, int64_t end, int64_t at)
{
    const struct pick *p = arrays;
    memcpy(p->compact + at, p->whole + first, (size_t)(end - first) * sizeof *p->whole);
    return DT_OK;
}

void dt_pieces_pick(const struct dt_pieces *pieces, const float *whole, float *compact)
{
    struct pick arrays = {whole, compact};
    visit_parts(pieces, pieces->n, 0, INT64_MAX, pick_part, &arrays);
}
