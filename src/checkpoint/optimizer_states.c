// Writes and reads optimizer files: every rank writes and reads its pieces.
#include "checkpoint/optimizer_states.h"

#include "base/file.h"
#include "base/finite.h"
#include "base/memory.h"
#include "checkpoint/ranges.h"

#include <string.h>

enum { FILES_MAX = 99999, STAMP_TEXT = 24 };

float *dt_optimizer_state(const struct dt_optimizer_states *states, const char *name)
{
    for (int i = 0; i < states->n; i++)
        if (strcmp(states->list[i].name, name) == 0)
            return states->list[i].data;
    return NULL;
}

const struct dt_pieces *dt_state_pieces(const struct dt_optimizer_states *states, int index)
{
    return states->list[index].vectors ? &states->others : &states->pieces;
}

static void add_span(struct dt_pieces *pieces, int64_t first, int64_t end, bool own)
{
    if (first >= end)
        return;
    pieces->spans[pieces->n++] = (struct dt_span){first, end};
    pieces->n_own += own;
    pieces->elements += end - first;
}

dt_status dt_states_leave_out_matrices(struct dt_optimizer_states *states,
                                       const struct dt_params *params)
{
    const struct dt_pieces *all = &states->pieces;
    struct dt_pieces *others = &states->others;
    *others = (struct dt_pieces){0};
    DT_TRY(DT_NEW(&others->spans, all->n + params->n, "the pieces of optimizer states"));
    for (int64_t i = 0; i < all->n; i++) {
        int64_t first = all->spans[i].first, end = all->spans[i].end;
        for (const struct dt_param *row = params->rows; row < params->rows + params->n; row++) {
            if (!row->matrix || row->offset + row->count <= first || row->offset >= end)
                continue;
            add_span(others, first, row->offset, i < all->n_own);
            first = row->offset + row->count;
        }
        add_span(others, first, end, i < all->n_own);
    }
    return DT_OK;
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

// Each row of the parameter table in each state is a tensor, with index state * params->n + row.
static dt_status open_ranges(const struct dt_params *params,
                             const struct dt_optimizer_states *states, struct dt_ranges *ranges)
{
    *ranges = (struct dt_ranges){.what = "optimizer states",
                                 .item = "element",
                                 .hint = "use another checkpoint, or the optim.name that it was "
                                         "trained with"};
    DT_TRY(DT_NEW(&ranges->tensors, states->n * params->n, "the names of optimizer states"));
    for (int state = 0; state < states->n; state++)
        for (int row = 0; row < params->n; row++) {
            struct dt_ranged_tensor *tensor = &ranges->tensors[ranges->n++];
            tensor->type = DT_F32;
            tensor->items = params->rows[row].file_count;
            // Older checkpoints have it.
            tensor->optional = params->rows[row].optional ||
                               (states->list[state].vectors && params->rows[row].matrix);
            snprintf(tensor->name, sizeof tensor->name, "%s.%s", states->list[state].name,
                     params->rows[row].name);
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

dt_status dt_optimizer_states_write(const char *folder, const char *prefix, int part, int parts,
                                    const struct dt_params *params,
                                    const struct dt_optimizer_states *states,
                                    const struct dt_part_stamp *stamp,
                                    struct dt_manifest_file *file)
{
    const struct stamp_text text = stamp_text(stamp);
    const char *const metadata[] = {"run", text.run, "step", text.step};
    char path[DT_PATH];
    struct dt_ranges ranges;
    file_name(file->name, prefix, part, parts);
    DT_TRY(dt_states_file(path, folder, prefix, part, parts));
    dt_status status = open_ranges(params, states, &ranges);
    for (int i = 0; i < ranges.n && status == DT_OK; i++) {
        const struct dt_param *row = &params->rows[i % params->n];
        const float *data = states->list[i / params->n].data;
        const struct dt_pieces *pieces = dt_state_pieces(states, i / params->n);
        struct dt_held p = {0};
        while (status == DT_OK && dt_pieces_next(pieces, part == 0 ? pieces->n : pieces->n_own,
                                                 row->offset, row->offset + row->file_count, &p))
            status = dt_ranges_add(&ranges, (struct dt_range){i, p.first - row->offset,
                                                              p.end - row->offset, data + p.at});
    }
    if (status == DT_OK)
        status = dt_ranges_write(&ranges, path, metadata, 2, file);
    dt_ranges_free(&ranges);
    return status;
}

// Their number is in the name of the first listed file.
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

// ---- reading: every entry is checked and read, then ranges must cover everything

struct reader {
    const struct dt_params *params;
    const struct dt_optimizer_states *states;
    const struct dt_part_stamp *stamp; // NULL: any
    int files, stamped;                // read so far; of these with a stamp
    struct dt_ranges ranges;
};

// Detects a part of another checkpoint, whose checksum is correct.
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

// Reads this rank's elements of an entry's range.
static dt_status read_entry(const struct reader *r, const struct dt_safetensors *file,
                            const struct dt_safetensor *entry, const struct dt_range *range)
{
    const struct dt_param *row = &r->params->rows[range->tensor % r->params->n];
    const struct dt_optimizer_state *state = &r->states->list[range->tensor / r->params->n];
    const struct dt_pieces *pieces = dt_state_pieces(r->states, range->tensor / r->params->n);
    struct dt_held p = {0};
    while (dt_pieces_next(pieces, pieces->n, row->offset + range->first, row->offset + range->last,
                          &p)) {
        float *data = state->data + p.at;
        int64_t n = p.end - p.first, element = p.first - row->offset;
        DT_TRY(dt_safetensors_read_f32(file, entry, element - range->first, n, data));
        int64_t bad = state->squares ? dt_find_outside(data, n, 0, INFINITY) // squares may overflow
                                     : dt_find_outside(data, n, -FLT_MAX, FLT_MAX);
        if (bad < n && !state->weights) // weights are checked when a model is created
            return DT_FAIL(DT_USER, "use another checkpoint: this one's values are damaged",
                           "%s: %s.%s holds %g at element %lld; all must be %s", file->path,
                           state->name, row->name, (double)data[bad], (long long)(element + bad),
                           state->squares ? "0 or more" : "finite");
    }
    return DT_OK;
}

// Opens one file at a time, since a set may exceed the limit of open files.
static dt_status read_file(struct reader *r, const char *path)
{
    struct dt_safetensors *file;
    dt_status status;
    DT_TRY(dt_safetensors_open(path, &file));
    DT_TRY_GOTO(status, out, check_stamp(r, file));
    for (int i = 0; i < file->n_tensors; i++) {
        struct dt_range range;
        DT_TRY_GOTO(status, out, dt_ranges_read(&r->ranges, file, &file->tensors[i], &range));
        DT_TRY_GOTO(status, out, read_entry(r, file, &file->tensors[i], &range));
    }
out:
    dt_safetensors_close(file);
    return status;
}

dt_status dt_optimizer_states_read(const char *folder, const char *prefix, int n,
                                   const struct dt_params *params,
                                   const struct dt_optimizer_states *states,
                                   const struct dt_part_stamp *stamp)
{
    struct reader reader = {.params = params, .states = states, .stamp = stamp};
    char path[DT_PATH];
    dt_status status = open_ranges(params, states, &reader.ranges);
    for (int i = 0; i < states->n; i++)
        memset(states->list[i].data, 0,
               (size_t)dt_state_pieces(states, i)->elements * sizeof(float));
    for (int i = 0; i < n && status == DT_OK; i++) {
        status = dt_states_file(path, folder, prefix, i, n);
        if (status == DT_OK)
            status = read_file(&reader, path);
    }
    if (status == DT_OK)
        status = dt_ranges_check(&reader.ranges, folder);
    dt_ranges_free(&reader.ranges);
    return status;
}

void dt_pieces_pick(const struct dt_pieces *pieces, const float *whole, float *compact)
{
    struct dt_held p = {0};
    while (dt_pieces_next(pieces, pieces->n, 0, INT64_MAX, &p))
        memcpy(compact + p.at, whole + p.first, (size_t)(p.end - p.first) * sizeof *whole);
}
