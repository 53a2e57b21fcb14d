// Every rank sends its counters to all ranks. Rank 0 merges counters with the same lane and name
// into a row, and writes the rows as a table and as JSON.
#include "train/profile.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/trace.h"
#include "train/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIMITS_MAX_BYTES = 1 << 20, SPANS = 1 << 17, TOP = 5 };

struct rank { // as sent
    double seconds;
    int64_t n;
    struct dt_trace_counter counters[DT_TRACE_COUNTERS];
};

// ---- opening

// Parses the line {"bench":"machine", …}, whose name must match this machine and its number of
// threads.
static dt_status parse_limits(const struct dt_job *job, const char *line,
                              struct dt_machine_limits *limits)
{
    const char *path = job->settings.log.limits, *name;
    const struct {
        const char *field;
        double *value;
    } fields[] = {{"copy_gb_per_s", &limits->copy},         {"gemm_fp32_gflops", &limits->gemm_f32},
                  {"gemm_bf16_gflops", &limits->gemm_bf16}, {"gexp_per_s", &limits->exps},
                  {"gexp2_per_s", &limits->exp2s},          {"glane_per_s", &limits->lanes}};
    struct dt_device_info info;
    cJSON *json;
    DT_TRY(dt_backend_info(&job->backend, &info));
    DT_TRY(dt_json_parse(path, line, (int64_t)strlen(line), &json));
    dt_status status = dt_json_string(path, json, "name", &name);
    if (status == DT_OK && strcmp(name, info.name) != 0)
        status = DT_FAIL(
            DT_USER, "measure again: dtrain bench --json --threads N, N being this run's threads",
            "%s (log.limits) was measured on %s, but this run uses %s", path, name, info.name);
    for (size_t i = 0; status == DT_OK && i < sizeof fields / sizeof *fields; i++) {
        status = dt_json_double(path, json, fields[i].field, 1e-6, 1e12, fields[i].value);
        *fields[i].value *= 1e9;
    }
    cJSON_Delete(json);
    return status;
}

static dt_status read_limits(const struct dt_job *job, struct dt_machine_limits *limits)
{
    const char *path = job->settings.log.limits;
    char *text;
    int64_t size;
    DT_TRY_NOTE(dt_read_file(path, LIMITS_MAX_BYTES, &text, &size), "reading log.limits");
    char *line = strtok(text, "\n");
    while (line && !strstr(line, "\"bench\":\"machine\""))
        line = strtok(NULL, "\n");
    dt_status status =
        line ? parse_limits(job, line, limits)
             : DT_FAIL(DT_USER, "dtrain bench --json >FILE, then log.limits = FILE",
                       "%s (log.limits) has no line {\"bench\":\"machine\", …}", path);
    free(text);
    return status;
}

dt_status dt_profile_open(const struct dt_job *job, struct dt_profile *profile)
{
    const struct dt_settings *s = &job->settings;
    bool traces = s->log.trace_steps[0], has_limits = s->log.limits[0];
    *profile = (struct dt_profile){.job = job};
    dt_parse_steps(s->log.trace_steps, &profile->first, &profile->last);
    if (!s->log.profile && !traces)
        return DT_OK;
    if (has_limits)
        DT_TRY(read_limits(job, &profile->limits));
    DT_TRY(dt_trace_open(traces ? SPANS : 0));
    profile->start = dt_seconds();
    dt_trace_ranges(job->backend.table->range_begin, job->backend.table->range_end);
    dt_trace_phase("start-up");
    return dt_op_times_create(&job->backend, has_limits ? &profile->limits : NULL, &profile->times);
}

void dt_profile_plan(const struct dt_job *job, struct dt_memory_plan *plan)
{
    const struct dt_settings *s = &job->settings;
    bool traces = s->log.trace_steps[0];
    int64_t gathered = job->comm->info.rank == 0 ? job->comm->info.size : 1;
    if (!s->log.profile && !traces)
        return;
    dt_memory_plan_add(plan, "stamps", dt_op_times_bytes(&job->backend, false), false);
    dt_memory_plan_add(plan, "host profile",
                       dt_op_times_bytes(&job->backend, true) + dt_trace_bytes(traces ? SPANS : 0) +
                           (s->log.profile ? gathered * (int64_t)sizeof(struct rank) : 0),
                       true);
}

void dt_profile_close(struct dt_profile *profile)
{
    dt_trace_close();
    dt_op_times_destroy(profile->times);
    profile->times = NULL;
}

// ---- the timeline

bool dt_profile_traces(const struct dt_profile *p, int64_t step)
{
    return step >= p->first && step <= p->last;
}

void dt_profile_begin_step(struct dt_profile *p, int64_t step)
{
    if (p->keeps || !dt_profile_traces(p, step))
        return;
    p->keeps = true;
    dt_trace_keep(true);
}

dt_status dt_profile_end_step(struct dt_profile *p, int64_t step, bool run_ends)
{
    char path[DT_PATH];
    if (!p->keeps || (step < p->last && !run_ends))
        return DT_OK;
    p->keeps = false;
    dt_trace_phase("writing the trace");
    dt_trace_keep(false);
    DT_TRY(dt_path(path, "%s/trace-%lld-%lld.json", p->job->run_path, (long long)p->first,
                   (long long)p->last));
    return dt_timeline_write(p->job->comm, path);
}

// ---- the table

struct row {
    const char *name;
    int64_t lane;
    double count, seconds; // mean over ranks
    double most;           // seconds of the slowest rank
    int slowest;
    struct dt_trace_work work; // mean over ranks
};

struct table {
    const struct dt_profile *profile;
    int ranks;
    double seconds; // mean over ranks
    struct row rows[2 * DT_TRACE_COUNTERS];
    int n;
};

static void add(struct table *table, const struct dt_trace_counter *counter, int rank, double scale)
{
    struct row *row = table->rows, *end = row + table->n;
    double share = scale / table->ranks;
    while (row < end && (row->lane != counter->lane || strcmp(row->name, counter->name) != 0))
        row++;
    if (row == table->rows + 2 * DT_TRACE_COUNTERS)
        return;
    if (row == end) {
        table->n++;
        *row = (struct row){.name = counter->name, .lane = counter->lane, .slowest = rank};
    }
    if (scale * counter->seconds > row->most) {
        row->most = scale * counter->seconds;
        row->slowest = rank;
    }
    row->count += share * (double)counter->count;
    row->seconds += share * counter->seconds;
    row->work.bytes += share * counter->work.bytes;
    row->work.flops += share * counter->work.flops;
    row->work.floor += share * counter->work.floor;
}

static int by_lane_and_time(const void *x, const void *y)
{
    const struct row *a = x, *b = y;
    if (a->lane != b->lane)
        return a->lane < b->lane ? -1 : 1;
    return a->seconds > b->seconds ? -1 : a->seconds < b->seconds;
}

// *all: the steps or batches of a lane. Returns in how many of them ops were timed; 0: all.
static int64_t timed_of(const struct dt_profile *p, int64_t lane, int64_t *all)
{
    bool validation = lane == DT_LANE_VALIDATION;
    *all = validation ? p->batches : p->steps;
    if (lane != DT_LANE_OP && lane != DT_LANE_DEVICE_COMM && !validation)
        return 0;
    return validation ? p->timed_batches : p->timed_steps;
}

static const struct {
    const char *name, *title; // in the JSON; in the table
} lanes[DT_LANE_COUNT] = {
    [DT_LANE_PHASE] = {"phase", "phases of the training thread: they add up to the run"},
    [DT_LANE_DEVICE] = {"device", "the same on the device, by its clock"},
    [DT_LANE_OP] = {"op", "ops of training steps"},
    [DT_LANE_VALIDATION] = {"validation op", "ops of validation batches"},
    [DT_LANE_COMM] = {"comm", "collectives, from start to end, also while training continues"},
    [DT_LANE_DEVICE_COMM] = {"device comm", "collectives between devices, by their clock"},
    [DT_LANE_INPUT] = {"input", "reader thread (reading a block is part of filling a batch)"},
    [DT_LANE_CHECKPOINT] = {"checkpoint", "checkpoints"},
};

// Prints a figure, or a dash if it does not apply.
static void print_figure(FILE *f, int decimals, double value)
{
    char text[32] = "-";
    if (value > 0 && isfinite(value))
        snprintf(text, sizeof text, "%.*f", decimals, value);
    fprintf(f, " %9s", text);
}

static void print_table(FILE *f, const struct table *table)
{
    const struct dt_profile *p = table->profile;
    fprintf(f, "%s: %lld steps on %d rank%s, %.3f s; times and counts are those of the mean rank\n",
            p->job->run_path, (long long)p->steps, table->ranks, table->ranks == 1 ? "" : "s",
            table->seconds);
    if (p->limits.copy > 0)
        fprintf(f, "of floor: the least time that the machine needs (log.limits) over the time "
                   "taken; above 1 where caches hold the data\n");
    for (int i = 0; i < table->n; i++) {
        const struct row *row = &table->rows[i];
        if (i == 0 || row->lane != row[-1].lane) {
            fprintf(f, "\n%s", lanes[row->lane].title);
            int64_t n, timed = timed_of(p, row->lane, &n);
            if (timed > 0 && timed < n)
                fprintf(f, " (timed in %lld of %lld, scaled)", (long long)timed, (long long)n);
            fprintf(f, "\n  %-28s %9s %10s %7s %10s %5s %8s %9s %9s %9s%s\n", "", "count", "s",
                    "share", "max s", "rank", "max/mean", "ms each", "GFLOP/s", "GB/s",
                    p->limits.copy > 0 ? "  of floor" : "");
        }
        double seconds = row->seconds;
        fprintf(f, "  %-28s %9.12g %10.4f %6.1f%% %10.4f %5d %8.2f", row->name,
                round(10 * row->count) / 10, seconds, 100 * seconds / table->seconds, row->most,
                row->slowest, seconds > 0 ? row->most / seconds : 1);
        fprintf(f, " %9.4f", 1e3 * seconds / row->count);
        print_figure(f, 1, row->work.flops / seconds / 1e9);
        print_figure(f, 2, row->work.bytes / seconds / 1e9);
        if (table->profile->limits.copy > 0)
            print_figure(f, 2, row->work.floor / seconds);
        fputc('\n', f);
    }
}

// The table for programs: each row is an object; seconds, bytes and FLOPs are means over ranks.
static char *json_text(const struct table *table)
{
    const struct dt_profile *p = table->profile;
    cJSON *json = cJSON_CreateObject(), *rows = cJSON_AddArrayToObject(json, "rows");
    bool fine = rows && dt_json_add_int(json, "steps", p->steps) &&
                dt_json_add_int(json, "timed_steps", p->timed_steps) &&
                dt_json_add_int(json, "ranks", table->ranks) &&
                dt_json_add_double(json, "seconds", table->seconds);
    for (int i = 0; i < table->n && fine; i++) {
        const struct row *row = &table->rows[i];
        cJSON *object = cJSON_CreateObject();
        fine = cJSON_AddItemToArray(rows, object) &&
               cJSON_AddStringToObject(object, "lane", lanes[row->lane].name) &&
               cJSON_AddStringToObject(object, "name", row->name) &&
               dt_json_add_double(object, "count", row->count) &&
               dt_json_add_double(object, "seconds", row->seconds) &&
               dt_json_add_double(object, "max_seconds", row->most) &&
               dt_json_add_int(object, "slowest_rank", row->slowest) &&
               dt_json_add_double(object, "bytes", row->work.bytes) &&
               dt_json_add_double(object, "flops", row->work.flops) &&
               dt_json_add_double(object, "floor_seconds", row->work.floor);
    }
    char *text = fine ? dt_json_text(json) : NULL;
    cJSON_Delete(json);
    return text;
}

// Writes a file in the run's folder and frees its text; NULL: out of memory.
static dt_status write_text(const struct dt_profile *profile, const char *name, char *text)
{
    char path[DT_PATH];
    dt_status status = dt_path(path, "%s/%s", profile->job->run_path, name);
    if (status == DT_OK && !text)
        status = DT_FAIL(DT_MACHINE, NULL, "no memory for %s", path);
    if (status == DT_OK)
        status = dt_write_file_atomic(path, text, (int64_t)strlen(text));
    free(text);
    return status;
}

// "where the time went: backward 51.2 %, forward 27.3 %, …"
static void show_top(const struct table *table, enum dt_lane lane, const char *title)
{
    char text[512] = "";
    int n = 0;
    for (int i = 0; i < table->n && n < TOP; i++) {
        const struct row *row = &table->rows[i];
        if (row->lane == (int64_t)lane)
            dt_append(text, sizeof text, "%s%s %.1f %%", n++ > 0 ? ", " : "", row->name,
                      100 * row->seconds / table->seconds);
    }
    if (n > 0)
        dt_info("%s: %s", title, text);
}

static dt_status write_table(const struct dt_profile *profile, const struct rank *all)
{
    struct table table = {.profile = profile, .ranks = profile->job->comm->info.size};
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    for (int r = 0; r < table.ranks; r++) {
        table.seconds += all[r].seconds / table.ranks;
        for (int64_t i = 0; i < all[r].n; i++) { // scales partly timed lanes to all steps
            int64_t n, timed = timed_of(profile, all[r].counters[i].lane, &n);
            add(&table, &all[r].counters[i], r, timed > 0 ? (double)n / (double)timed : 1);
        }
    }
    qsort(table.rows, (size_t)table.n, sizeof *table.rows, by_lane_and_time);
    if (f) {
        print_table(f, &table);
        fclose(f);
    }
    DT_TRY(write_text(profile, "profile.txt", text));
    DT_TRY(write_text(profile, "profile.json", json_text(&table)));
    bool device = !profile->job->backend.table->unified;
    show_top(&table, device ? DT_LANE_DEVICE : DT_LANE_PHASE, "where the time went");
    show_top(&table, DT_LANE_OP, "ops");
    dt_info("profile: %s/profile.txt", profile->job->run_path);
    return DT_OK;
}

dt_status dt_profile_write(const struct dt_profile *profile)
{
    struct dt_comm *comm = profile->job->comm;
    if (!profile->job->settings.log.profile || profile->steps == 0)
        return DT_OK;
    dt_trace_phase("profile"); // earlier phases are complete
    double seconds = dt_seconds() - profile->start;
    struct rank *all, *mine;
    dt_status status = DT_NEW(&all, comm->info.size, "the profile of %d ranks", comm->info.size);
    DT_TRY_GOTO(status, out, dt_agree(comm, status));
    mine = &all[comm->info.rank];
    mine->seconds = seconds;
    mine->n = dt_trace_counters(mine->counters);
    DT_TRY_GOTO(status, out, dt_all_gather(comm, all, (int64_t)sizeof *all));
    if (comm->info.rank == 0 && write_table(profile, all) != DT_OK) { // not fatal for the run
        dt_warn("cannot write the profile: %s", dt_error_current()->message);
        dt_error_clear();
    }
out:
    free(all);
    return status;
}
