// game FOLDER [FRAME_SIZE [EPISODES [SEED]]]: a small simulated game and an expert who plays it, as
// episodes that dtrain trains on (FOLDER/train-0.h5 to train-3.h5, val.h5).
// game --play MODEL [FRAME_SIZE [GAMES [SEED [DELAY [ACTION_STEPS]]]]]: a trained model plays GAMES
// games side by side by libdtrain_step, ACTION_STEPS frames by one prediction, and what it does is
// done DELAY frames later; prints its mean score, that of the expert (without a delay) and of
// random play, each with its 95 % confidence interval.
// game --relabel FILE MODEL …: the same, and writes the frames that the model came to as a shard
// whose targets are what the expert would have done there.
// The model reads the frame and, after it, what libdtrain_step fills in (earlier targets). Its head
// main_x moves, and its buttons 0 to 3 are scored; it may have others, as for a chunk's later rows.
//
// What the expert does mostly depends on what is no longer to be seen, so that a model without
// memory fails at it:
//   - a target moves along a line and bounces at its ends, but is shown in one frame of twelve;
//   - one of four cues flashes for a single frame now and then; its button is pressed after a
//     delay and for a time that depend on the cue.
// Frames, F numbers: own place and speed, the opponent's height and speed, whether the target is
// shown, its place and speed if so, four cue flags, and noise. Actions, as heads of a policy:
//   buttons:bernoulli*8   0 to 3: the cue's own; 4: jump, when the opponent is high and the
//                         last cue was 2 or 3; 5: the opponent is low; 6: four frames of every
//                         eight since the last cue; 7: the last two cues were alike
//   main_x, main_y        stick, 17 steps: towards the target; the opponent's height
//   c_x, c_y              what main_x was eight frames ago; the height at the last cue
//   shoulder:categorical*5   time since the last cue, in steps of eight frames
// The score of a game, at most 100, is the mean of two parts: how near the own place is to the
// target, 1 - |distance| on average, no less than 0; and the F1 of buttons 0 to 3, of the frames in
// which the expert presses them.
// Uses base, libdtrain_step and HDF5.
#include "base/rng.h"
#include "dtrain_step.h"

#include <errno.h>
#include <hdf5.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    SHORTEST = 150, // frames of an episode
    LONGEST = 450,
    SHARDS = 5, // the last is for validation
    BUTTONS = 8,
    CUES = 4,
    STEPS = 17,   // of a stick
    TRIGGER = 5,  // of the shoulder
    ECHO = 8,     // frames that c_x is late
    SEEN = 11,    // numbers of a frame that are not noise
    PLAYED = 300, // frames of a game that a model plays
    DELAY_MOST = 64,
};

struct game {
    struct dt_philox rng;
    double x, speed;              // own
    double target, target_speed;  // hidden but for single frames
    double height, height_speed;  // the opponent's
    int64_t t, until_shown;       // frames since the start; until the target is shown
    int64_t until_cue, since_cue; // since_cue -1: none yet
    int cue, before;              // the last two; -1: none
    double cue_height;
    int stick[ECHO];
};

struct episodes {
    int64_t n, frames, frame_size;
    uint64_t *starts;
    float *frame;                                    // [frames, F]
    uint8_t *buttons;                                // [frames, BUTTONS]
    uint8_t *main_x, *main_y, *c_x, *c_y, *shoulder; // [frames]
};

static double uniform(struct game *g, double low, double high)
{
    return low + (high - low) * (double)dt_philox_uniform(&g->rng);
}

static int64_t whole(struct game *g, int64_t low, int64_t high) // both included
{
    return low + (int64_t)dt_philox_below(&g->rng, (uint64_t)(high - low + 1));
}

static int step_of(double x) // [-1, 1] to 0 … 16
{
    double clamped = fmin(1, fmax(-1, x));
    return (int)lround((clamped + 1) / 2 * (STEPS - 1));
}

static void start(struct game *g)
{
    g->x = uniform(g, -1, 1), g->speed = 0;
    g->target = uniform(g, -1, 1);
    g->target_speed = uniform(g, 0.01, 0.04) * (whole(g, 0, 1) ? 1 : -1);
    g->height = uniform(g, -1, 1), g->height_speed = 0;
    g->t = 0, g->until_shown = 0;
    g->until_cue = whole(g, 5, 30), g->since_cue = -1;
    g->cue = g->before = -1, g->cue_height = 0;
    for (int i = 0; i < ECHO; i++)
        g->stick[i] = STEPS / 2;
}

static void bounce(double *place, double *speed)
{
    *place += *speed;
    if (fabs(*place) > 1) {
        *place = copysign(2, *place) - *place;
        *speed = -*speed;
    }
}

// What the world does before the frame is shown. True: the target is shown.
static bool advance(struct game *g, bool *flash)
{
    bool shown = g->until_shown-- <= 0;
    bounce(&g->target, &g->target_speed);
    g->height_speed = 0.9 * g->height_speed + uniform(g, -0.02, 0.02);
    bounce(&g->height, &g->height_speed);
    if (shown)
        g->until_shown = whole(g, 7, 15);
    g->since_cue += g->since_cue >= 0;
    *flash = g->until_cue-- <= 0;
    if (*flash) {
        g->before = g->cue;
        g->cue = (int)whole(g, 0, CUES - 1);
        g->since_cue = 0;
        g->until_cue = whole(g, 30, 45);
        g->cue_height = g->height;
    }
    return shown;
}

static void write_frame(struct game *g, bool shown, bool flash, float *frame, int64_t size)
{
    const double seen[SEEN - CUES] = {g->x,
                                      10 * g->speed,
                                      g->height,
                                      10 * g->height_speed,
                                      shown,
                                      shown ? g->target : 0,
                                      shown ? 25 * g->target_speed : 0};
    for (int i = 0; i < SEEN - CUES; i++)
        frame[i] = (float)seen[i];
    for (int i = 0; i < CUES; i++)
        frame[SEEN - CUES + i] = flash && g->cue == i;
    for (int64_t i = SEEN; i < size; i++)
        frame[i] = dt_philox_normal(&g->rng);
}

// What a stick does to the own place.
static void move(struct game *g, int stick)
{
    g->speed = 0.8 * g->speed + 0.01 * (stick - STEPS / 2) / (STEPS / 2);
    g->x = fmin(1, fmax(-1, g->x + g->speed));
    g->t++;
}

// The expert's action at a frame; gives its main stick.
static int decide(struct game *g, const struct episodes *e, int64_t at)
{
    int64_t since = g->since_cue, wait = 6 + 6 * g->cue, hold = 2 + 2 * g->cue;
    uint8_t *b = e->buttons + at * BUTTONS;
    int stick = step_of(4 * (g->target - g->x));
    if (g->cue >= 0)
        b[g->cue] = since >= wait && since < wait + hold;
    b[4] = g->cue >= 2 && g->height > 0.3;
    b[5] = g->height < -0.5;
    b[6] = since >= 0 && since % 8 < 4;
    b[7] = g->cue >= 0 && g->cue == g->before;
    e->main_x[at] = (uint8_t)stick;
    e->main_y[at] = (uint8_t)step_of(g->height);
    e->c_x[at] = (uint8_t)g->stick[g->t % ECHO];
    e->c_y[at] = (uint8_t)step_of(g->cue_height);
    e->shoulder[at] = (uint8_t)(since < 0 ? 0 : since < 8 * TRIGGER ? since / 8 : TRIGGER - 1);
    g->stick[g->t % ECHO] = stick;
    return stick;
}

static void simulate(struct game *g, struct episodes *e)
{
    int64_t frames = 0;
    for (int64_t k = 0; k < e->n; k++) {
        int64_t end = frames + whole(g, SHORTEST, LONGEST);
        e->starts[k] = (uint64_t)frames;
        for (start(g); frames < end; frames++) {
            bool flash, shown = advance(g, &flash);
            write_frame(g, shown, flash, e->frame + frames * e->frame_size, e->frame_size);
            move(g, decide(g, e, frames));
        }
    }
    e->frames = frames;
}

static bool put(hid_t file, const char *name, hid_t disk, hid_t memory, int64_t rows, int64_t width,
                const void *data)
{
    hsize_t dims[] = {(hsize_t)rows, (hsize_t)width};
    hid_t space = H5Screate_simple(width > 0 ? 2 : 1, dims, NULL);
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(plist, false); // the same seed makes the same bytes
    hid_t set = H5Dcreate2(file, name, disk, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    bool good = H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0;
    H5Pclose(plist);
    H5Sclose(space);
    return H5Dclose(set) >= 0 && good;
}

static bool write_shard(const char *path, const struct episodes *e)
{
    const struct {
        const char *name;
        const uint8_t *data;
    } sticks[] = {{"/targets/main_x", e->main_x},
                  {"/targets/main_y", e->main_y},
                  {"/targets/c_x", e->c_x},
                  {"/targets/c_y", e->c_y},
                  {"/targets/shoulder", e->shoulder}};
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    if (file < 0)
        return false;
    H5Gclose(H5Gcreate2(file, "/targets", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    bool good =
        put(file, "/frames", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, e->frames, e->frame_size,
            e->frame) &&
        put(file, "/episode_starts", H5T_STD_U64LE, H5T_NATIVE_UINT64, e->n, 0, e->starts) &&
        put(file, "/targets/buttons", H5T_STD_U8LE, H5T_NATIVE_UINT8, e->frames, BUTTONS,
            e->buttons);
    for (size_t i = 0; i < sizeof sticks / sizeof *sticks && good; i++)
        good =
            put(file, sticks[i].name, H5T_STD_U8LE, H5T_NATIVE_UINT8, e->frames, 0, sticks[i].data);
    return H5Fclose(file) >= 0 && good;
}

// Room for n episodes of `longest` frames.
static bool allocate(struct episodes *e, int64_t longest)
{
    size_t most = (size_t)(e->n * longest);
    e->starts = calloc((size_t)e->n, sizeof *e->starts);
    e->frame = calloc(most * (size_t)e->frame_size, sizeof *e->frame);
    e->buttons = calloc(most, BUTTONS + 5);
    if (!e->starts || !e->frame || !e->buttons)
        return false;
    e->main_x = e->buttons + most * BUTTONS;
    e->main_y = e->main_x + most, e->c_x = e->main_y + most, e->c_y = e->c_x + most;
    e->shoulder = e->c_y + most;
    return true;
}

static void release(struct episodes *e)
{
    free(e->starts);
    free(e->frame);
    free(e->buttons);
}

static bool make_shard(const char *path, int64_t frame_size, int64_t n, uint64_t seed, int shard)
{
    struct game game = {.rng = dt_philox_init(seed, 0, (uint64_t)shard)};
    struct episodes e = {.n = n, .frame_size = frame_size};
    bool good = allocate(&e, LONGEST);
    if (good) {
        simulate(&game, &e);
        good = write_shard(path, &e);
    }
    if (good)
        printf("%s: %lld episodes, %lld frames of %lld numbers\n", path, (long long)e.n,
               (long long)e.frames, (long long)frame_size);
    else
        fprintf(stderr, "game: cannot write %s: %s\n", path, strerror(errno));
    release(&e);
    return good;
}

// Play.

// What a player did in a game, and what came of it.
struct tally {
    double near;                    // summed over frames
    int64_t right, pressed, wanted; // buttons: in common with the expert's, own, the expert's
    int sticks[DELAY_MOST];         // decided and not done yet
    uint8_t buttons[DELAY_MOST];    // a bit for each cue's
};

// One frame: the action that was decided `delay` frames ago is done.
static void act(struct game *g, const uint8_t *expert, int64_t delay, int stick, unsigned buttons,
                struct tally *tally)
{
    if (delay > 0) {
        int64_t slot = g->t % delay;
        int done = g->t < delay ? STEPS / 2 : tally->sticks[slot];
        unsigned held = g->t < delay ? 0 : tally->buttons[slot];
        tally->sticks[slot] = stick;
        tally->buttons[slot] = (uint8_t)buttons;
        stick = done;
        buttons = held;
    }
    for (int i = 0; i < CUES; i++) {
        bool mine = buttons >> i & 1, due = expert[i];
        tally->right += mine && due;
        tally->pressed += mine;
        tally->wanted += due;
    }
    tally->near += fmax(0, 1 - fabs(g->x - g->target));
    move(g, stick);
}

static void print_score(const char *who, const struct tally *tallies, int64_t games)
{
    double sum[3] = {0}, squares = 0;
    for (int64_t i = 0; i < games; i++) {
        const struct tally *t = &tallies[i];
        double near = t->near / PLAYED, total = (double)(t->pressed + t->wanted);
        double f1 = total > 0 ? 2 * (double)t->right / total : 1, score = 50 * (near + f1);
        sum[0] += score, sum[1] += near, sum[2] += f1;
        squares += score * score;
    }
    double n = (double)games, mean = sum[0] / n;
    double variance = games > 1 ? fmax(0, squares / n - mean * mean) * n / (n - 1) : 0;
    printf("%-7s %6.2f +- %5.2f   near the target %.3f, buttons %.3f\n", who, mean,
           1.96 * sqrt(variance / n), sum[1] / n, sum[2] / n);
}

struct player {
    dtrain_step *model;
    struct dtrain_step_info info;
    int32_t stick, buttons; // where these are among the drawn values
    float *frames, *drawn;  // [games, …]
    int32_t *ids;
};

static bool fail_step(void)
{
    char why[1024];
    dtrain_step_error(why, sizeof why);
    fprintf(stderr, "game: %s\n", why);
    return false;
}

static bool open_player(struct player *p, const char *path, int64_t frame_size, int64_t games,
                        uint64_t seed, int64_t action_steps)
{
    const struct dtrain_step_options options = {.streams = (int32_t)games,
                                                .action_steps = (int32_t)action_steps};
    p->stick = p->buttons = -1;
    if (dtrain_step_open(path, &options, &p->model) != DTRAIN_STEP_OK ||
        dtrain_step_describe(p->model, &p->info) != DTRAIN_STEP_OK)
        return fail_step();
    for (int32_t i = 0; i < p->info.n_outputs; i++) {
        struct dtrain_step_output output;
        if (dtrain_step_describe_output(p->model, i, &output) != DTRAIN_STEP_OK)
            return fail_step();
        if (strcmp(output.name, "main_x") == 0 && output.kind == DTRAIN_STEP_CATEGORICAL &&
            output.width == STEPS)
            p->stick = output.target;
        if (strcmp(output.name, "buttons") == 0 && output.target_width >= CUES)
            p->buttons = output.target;
    }
    if (p->stick < 0 || p->buttons < 0 || p->info.frame_size < frame_size) {
        fprintf(stderr,
                "game: %s: a player has the heads buttons:bernoulli*%d and main_x:categorical*%d, "
                "and reads frames of %lld numbers\n",
                path, BUTTONS, STEPS, (long long)frame_size);
        return false;
    }
    for (int32_t i = 0; i < p->info.streams; i++)
        if (dtrain_step_seed(p->model, i, seed + (uint64_t)i) != DTRAIN_STEP_OK)
            return fail_step();
    p->frames = calloc((size_t)(games * p->info.frame_size), sizeof *p->frames);
    p->drawn = calloc((size_t)(games * p->info.n_targets), sizeof *p->drawn);
    p->ids = calloc((size_t)(games * p->info.n_ids) + 1, sizeof *p->ids);
    return p->frames && p->drawn && p->ids;
}

static void close_player(struct player *p)
{
    dtrain_step_close(p->model);
    free(p->frames);
    free(p->drawn);
    free(p->ids);
}

enum who { MODEL, EXPERT, RANDOM };

// Plays all games, a frame of each at a time; the expert's actions there go to `e`.
static bool play_all(enum who who, struct player *p, struct game *games, struct episodes *e,
                     int64_t delay, struct tally *tallies)
{
    struct dt_philox random = dt_philox_init(1, 1, 0);
    int64_t F = e->frame_size;
    for (int64_t i = 0; i < e->n; i++) {
        start(&games[i]);
        e->starts[i] = (uint64_t)(i * PLAYED);
    }
    e->frames = e->n * PLAYED;
    for (int64_t t = 0; t < PLAYED; t++) {
        for (int64_t i = 0; i < e->n; i++) {
            float *frame = e->frame + (i * PLAYED + t) * F;
            bool flash, shown = advance(&games[i], &flash);
            write_frame(&games[i], shown, flash, frame, F);
            if (who == MODEL)
                memcpy(p->frames + i * p->info.frame_size, frame, (size_t)F * sizeof *frame);
        }
        if (who == MODEL && dtrain_step_batch(p->model, 0, (int32_t)e->n, p->frames, p->ids, 0,
                                              p->drawn, NULL) != DTRAIN_STEP_OK)
            return fail_step();
        for (int64_t i = 0; i < e->n; i++) {
            int64_t at = i * PLAYED + t;
            const uint8_t *expert = e->buttons + at * BUTTONS;
            int stick = decide(&games[i], e, at);
            unsigned buttons = 0;
            for (int k = 0; k < CUES; k++)
                buttons |= (unsigned)(who == MODEL
                                          ? p->drawn[i * p->info.n_targets + p->buttons + k] > 0.5f
                                      : who == EXPERT ? expert[k] != 0
                                                      : dt_philox_below(&random, 2))
                           << k;
            if (who == MODEL)
                stick = (int)p->drawn[i * p->info.n_targets + p->stick];
            if (who == RANDOM)
                stick = (int)dt_philox_below(&random, STEPS);
            act(&games[i], expert, who == EXPERT ? 0 : delay, stick, buttons, &tallies[i]);
        }
    }
    return true;
}

// Every player plays the same games.
static bool play_games(struct player *p, const char *record, int64_t frame_size, int64_t n,
                       int64_t seed, int64_t delay)
{
    static const char *const names[] = {"model", "expert", "random"};
    struct game *games = calloc((size_t)n, sizeof *games);
    bool good = games != NULL;
    for (int who = MODEL; who <= RANDOM && good; who++) {
        struct episodes e = {.n = n, .frame_size = frame_size};
        struct tally *tallies = calloc((size_t)n, sizeof *tallies);
        for (int64_t i = 0; i < n; i++)
            games[i].rng = dt_philox_init((uint64_t)seed, 2, (uint64_t)i); // of no shard
        good = allocate(&e, PLAYED) && tallies &&
               play_all((enum who)who, p, games, &e, delay, tallies);
        if (good)
            print_score(names[who], tallies, n);
        if (good && who == MODEL && record) {
            good = write_shard(record, &e);
            if (!good)
                fprintf(stderr, "game: cannot write %s: %s\n", record, strerror(errno));
        }
        release(&e);
        free(tallies);
    }
    free(games);
    return good;
}

// Word `i` of the command line as a number in [least, most].
static bool number(int argc, char **argv, int i, int64_t least, int64_t most, int64_t *value)
{
    char *end = NULL;
    if (i >= argc)
        return true;
    *value = strtoll(argv[i], &end, 10);
    if (end != argv[i] && !*end && *value >= least && *value <= most)
        return true;
    fprintf(stderr, "game: %s: not a whole number from %lld to %lld\n", argv[i], (long long)least,
            (long long)most);
    return false;
}

static int usage(void)
{
    fputs("usage: game FOLDER [FRAME_SIZE [EPISODES [SEED]]]   (default: 16 1600 1)\n"
          "       game --play MODEL [FRAME_SIZE [GAMES [SEED [DELAY [ACTION_STEPS]]]]]\n"
          "       game --relabel FILE MODEL [FRAME_SIZE [GAMES [SEED [DELAY [ACTION_STEPS]]]]]\n"
          "       (defaults of both: 16 64 1 0 1)\n",
          stderr);
    return 2;
}

static int play_main(int argc, char **argv)
{
    int64_t frame_size = 16, games = 64, seed = 1, delay = 0, steps = 1;
    bool relabels = strcmp(argv[1], "--relabel") == 0;
    int at = relabels ? 4 : 3;
    struct player player = {0};
    if (argc < at || argc > at + 5)
        return usage();
    if (!number(argc, argv, at, SEEN, 4096, &frame_size) ||
        !number(argc, argv, at + 1, 1, 4096, &games) ||
        !number(argc, argv, at + 2, 0, INT64_MAX, &seed) ||
        !number(argc, argv, at + 3, 0, DELAY_MOST, &delay) ||
        !number(argc, argv, at + 4, 1, PLAYED, &steps))
        return 2;
    bool opened = open_player(&player, argv[at - 1], frame_size, games, (uint64_t)seed, steps);
    bool good =
        opened && play_games(&player, relabels ? argv[2] : NULL, frame_size, games, seed, delay);
    close_player(&player);
    return good ? 0 : opened ? 3 : 2;
}

int main(int argc, char **argv)
{
    int64_t frame_size = 16, episodes = 1600, seed = 1;
    char path[4096];
    if (argc > 1 && (strcmp(argv[1], "--play") == 0 || strcmp(argv[1], "--relabel") == 0))
        return play_main(argc, argv);
    if (argc < 2 || argc > 5 || argv[1][0] == '-')
        return usage();
    if (!number(argc, argv, 2, SEEN, 4096, &frame_size) ||
        !number(argc, argv, 3, SHARDS, 1000000, &episodes) ||
        !number(argc, argv, 4, 0, INT64_MAX, &seed))
        return 2;
    if (mkdir(argv[1], 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "game: cannot create %s: %s\n", argv[1], strerror(errno));
        return 3;
    }
    for (int shard = 0; shard < SHARDS; shard++) {
        int length = shard + 1 < SHARDS
                         ? snprintf(path, sizeof path, "%s/train-%d.h5", argv[1], shard)
                         : snprintf(path, sizeof path, "%s/val.h5", argv[1]);
        if (length >= (int)sizeof path ||
            !make_shard(path, frame_size, episodes / SHARDS, (uint64_t)seed, shard))
            return 3;
    }
    return 0;
}
