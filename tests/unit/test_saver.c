// Tests what remains after a failed save. The best checkpoint is the last one that was saved,
// run.patience counts the evaluations since then, and the next save works, a minute later or when
// it is due. The times that a save reports are the times that it took.
#include "checkpoint/saver.h"

#include "base/clock.h"
#include "dist/one_layer.h"
#include "scratch.h"

#include <stdatomic.h>
#include <sys/syscall.h>

static const struct dt_dataset no_data;
static struct dt_trainer_state state;
static int published, logged;
static bool sync_fails;
static atomic_bool sync_waits;       // the sync waits until training has waited briefly
static const double stalled_s = 100; // seconds that training was stalled before each save
enum { WRITTEN_S = 50 };             // seconds until what was written is published
static double save_began;
static _Atomic time_t later;  // seconds by which the clocks of this program are ahead
static _Atomic time_t look_s; // seconds that every reading of a clock adds
enum { BRIEF_S = 200 };       // longer than training waits briefly, and than WRITTEN_S

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int code = (int)syscall(SYS_clock_gettime, clock, t);
    t->tv_sec += later += look_s;
    return code;
}

static dt_status sync_or_fail(void *context)
{
    (void)context;
    later += WRITTEN_S;
    while (sync_waits)
        usleep(100);
    return sync_fails ? DT_FAIL(DT_MACHINE, NULL, "no sync") : DT_OK;
}

static dt_status count_published(void *context, int64_t step)
{
    (void)context;
    CHECK_INT(step, state.step);
    published++;
    return DT_OK;
}

static dt_status count_logged(void *context, const struct dt_saved *saved)
{
    (void)context;
    CHECK_INT(saved->step, state.step);
    double took_ms = (dt_seconds() - save_began) * 1e3;
    const double stalled_ms = 1e3 * (stalled_s + BRIEF_S);
    CHECK(saved->stall_ms >= stalled_ms && saved->stall_ms <= stalled_s * 1e3 + took_ms,
          "a stall of %g ms in %g ms more is reported as %g ms", stalled_ms, took_ms,
          saved->stall_ms);
    CHECK(saved->write_ms >= 1e3 * WRITTEN_S && saved->write_ms <= took_ms,
          "wrote for %g ms in %g ms", saved->write_ms, took_ms);
    logged++;
    return DT_OK;
}

// Puts a file in place of the folder of checkpoints, or removes it.
static void block(const char *dir, bool blocked)
{
    if (blocked) {
        CHECK_OK(dt_remove_tree(dir));
        put_text(dir, "");
    } else
        CHECK_INT(unlink(dir), 0);
}

// Saves. Of the saves that must fail, every other one fails before anything is written, and the
// rest when everything is written.
static void save(struct dt_saver *saver, const char *dir, bool fails)
{
    static int failed;
    int before = published;
    bool blocked = fails && ++failed % 2;
    sync_fails = fails && !blocked;
    if (blocked)
        block(dir, true);
    save_began = dt_seconds();
    sync_waits = true;
    CHECK_OK(dt_saver_begin(saver, save_began - stalled_s));
    CHECK(!dt_saver_is_free(saver), "a save is under way");
    struct dt_trainer_state then = state;
    if (!fails) // during the save, an evaluation is better
        state.best_step = state.step + 1, state.best_loss = 0;
    look_s = blocked ? 0 : BRIEF_S;
    CHECK_OK(dt_saver_settle(saver, DT_WAIT_BRIEFLY));
    look_s = 0;
    CHECK(dt_saver_is_free(saver) == blocked, "what is written takes longer than that");
    sync_waits = false;
    CHECK_OK(dt_saver_settle(saver, DT_WAIT));
    if (!fails)
        state = then;
    CHECK(dt_saver_is_free(saver), "the save has ended");
    if (blocked)
        block(dir, false);
    DIR *folder = opendir(dir);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        CHECK(!strstr(entry->d_name, ".tmp"), "%s is left", entry->d_name);
    if (folder)
        closedir(folder);
    CHECK_INT(published - before, !fails);
    CHECK_INT(logged, published);
    CHECK(!dt_saver_is_overdue(saver, 0), "not tried again at once");
    later += 61;
    CHECK_INT(dt_saver_is_overdue(saver, 0), fails);
    later = 0;
}

static int64_t best_after_reset; // -1: it was not reset

static void note_best(void *context)
{
    (void)context;
    best_after_reset = state.best_step;
}

// Runs evaluations with several losses and saves each that is the best so far. `failing` has a bit
// for each save that must fail.
static void check_best(struct dt_saver_config *config, struct dt_snapshot *snapshot,
                       unsigned failing)
{
    static const double losses[] = {5, 4, 4.5, 3};
    struct dt_saver *saver;
    int64_t best_step = 0, since = 0;
    double best_loss = 0;
    state = (struct dt_trainer_state){.storage = DT_F32};
    CHECK_OK(dt_saver_create(config, &saver));
    for (int i = 0; i < 4; i++) {
        bool fails = failing >> i & 1,
             improved = state.best_step == 0 || losses[i] < state.best_loss;
        state.step = state.updates = 10 * (i + 1);
        state.evaluations++;
        state.evaluations_since_best++;
        since++;
        best_after_reset = -1;
        if (improved) {
            state.best_step = state.step;
            state.best_loss = losses[i];
            state.evaluations_since_best = 0;
            CHECK_OK(dt_snapshot_fill(snapshot));
            save(saver, config->dir, fails);
        }
        if (improved && !fails) {
            best_step = state.step;
            best_loss = losses[i];
            since = 0;
        }
        CHECK(
            state.best_step == best_step && state.evaluations_since_best == since &&
                (best_step == 0 || (state.best_loss >= best_loss && state.best_loss <= best_loss)),
            "saves failing as in %x, evaluation %d: best step %lld, %lld evaluations since, not "
            "%lld, %lld",
            failing, i + 1, (long long)state.best_step, (long long)state.evaluations_since_best,
            (long long)best_step, (long long)since);
        CHECK_INT(best_after_reset, improved && fails ? best_step : -1);
    }
    dt_saver_destroy(saver);
}

// After a bad step the checkpoints before it are kept, since one of them may be the only good one.
static void check_kept(struct dt_saver_config *config, struct dt_snapshot *snapshot)
{
    struct dt_saver *saver;
    int64_t before;
    state = (struct dt_trainer_state){.storage = DT_F32};
    CHECK_OK(dt_saver_create(config, &saver));
    for (int i = 1; i <= 3; i++) {
        state.step = state.updates = 100 * i;
        state.bad_in_a_row = i == 2;
        CHECK_OK(dt_snapshot_fill(snapshot));
        save(saver, config->dir, false);
        CHECK_OK(dt_checkpoint_last_step(config->dir, state.step - 1, &before));
        CHECK_INT(before, i == 2 ? 100 : -1);
    }
    dt_saver_destroy(saver);
}

int main(void)
{
    struct dt_comm *comm;
    struct dt_backend backend;
    struct dt_snapshot snapshot;
    make_scratch();
    CHECK_OK(dt_comm_open(DT_COMM_KIND_SELF, &comm));
    CHECK_OK(dt_backend_open("cpu", 0, 1, &backend));
    struct dt_model *model = one_layer(&backend, 8, 16);
    int64_t elements = dt_model_params(model)->elements;
    struct dt_span all = {0, elements};
    struct dt_optimizer_states states = {
        .n = 2,
        .list = {{.name = "exp_avg"}, {.name = "exp_avg_sq", .squares = true}},
        .pieces = {&all, 1, 0, elements}};
    for (int i = 0; i < 2; i++)
        CHECK_OK(dt_alloc(&backend, elements * (int64_t)sizeof(float), &states.list[i].data));
    CHECK_OK(dt_snapshot_create(&backend, model, &states, true, &snapshot));
    struct dt_saver_config config = {.comm = comm,
                                     .snapshot = &snapshot,
                                     .train = &no_data,
                                     .dir = in_scratch("checkpoints"),
                                     .keep = 1,
                                     .best = true,
                                     .timeout_s = 1e9,
                                     .state = &state,
                                     .sync = sync_or_fail,
                                     .published = count_published,
                                     .log = count_logged,
                                     .reset = note_best};
    int threads = thread_count();
    for (unsigned failing = 0; failing < 16; failing++)
        check_best(&config, &snapshot, failing);
    check_kept(&config, &snapshot);
    check_threads(threads);
    dt_snapshot_destroy(&snapshot);
    for (int i = 0; i < 2; i++)
        dt_free(&backend, states.list[i].data);
    dt_model_destroy(model);
    dt_backend_close(&backend);
    dt_comm_close(comm);
    remove_scratch();
    return test_end();
}
