// Tests loading of checkpoints: the bits are the same however the optimizer's states are split into
// files. What may not change between runs, and what is wrong in a file, is refused with its name.
#include "base/safetensors.h"
#include "checkpoint/trainer_state.h"

#include "small_checkpoint.h"

#include <inttypes.h>

// The model that the tests save, and the one that they load.
static struct small_model small, loaded;
static struct dt_trainer_state got;

// Loads the only checkpoint of scratch/one.
static dt_status load_one(struct small_model *model, const struct dt_dataset *train)
{
    struct dt_trainer_state state = state_at(7);
    return load(in_scratch("one/step-00000007"), model, &state, train, &got);
}

static void test_round_trip(bool tied)
{
    struct small_model model = small_model_make(tied), blank = make_blank(tied);
    struct dt_checkpoint_arrays arrays = arrays_of(&model);
    struct dt_trainer_state state = state_at(1000);
    state.order.carry_state = state.order.reverse_complement = true;
    state.best_step = 900;
    state.best_loss = 2.7182818284590451; // all seventeen digits of a double
    state.evaluations_since_best = 2;
    state.losses = (struct dt_loss_statistics){.count = 997, .mean = 3.1, .variance = 0.01};
    state.bad_in_a_row = 2;
    state.rollbacks = 4;
    strcpy(state.left_out, "60:63");
    strcpy(state.order.mask, "train");
    char path[DT_PATH];
    strcpy(state.order.inputs, "obs/a[0:2] \"quoted\"");
    strcpy(state.order.targets, "/actions@2"); // older checkpoints write it this way
    state.order.stride = 5;
    state.order.time_axis = 1;
    state.order.val_fraction = 0.1;
    strcpy(state.order.episodes, "subject_*/trial_?");
    CHECK_OK(save_arrays(in_scratch("trip/sub"), &arrays, &state, path));
    CHECK_STR(path, in_scratch("trip/sub/step-00001000"));
    CHECK_OK(dt_checkpoint_verify(path));
    strcpy(state.order.targets, "actions@+2"); // has the same meaning
    CHECK_OK(load(path, &blank, &state, &dataset, &got));
    check_same(&model, &blank);
    CHECK_INT(got.step, 1000);
    CHECK_INT(got.updates, 997);
    CHECK_INT(got.skips, 3);
    CHECK_INT(got.skipped_in_a_row, 1);
    CHECK_INT(got.tokens, INT64_C(9007199254740991));
    CHECK_INT(got.order.seed, INT64_C(9223372036854775553));
    CHECK_INT(got.order.batch, 16);
    CHECK_INT(got.order.seq_len, 77);
    CHECK_INT(got.order.block, 64);
    CHECK_INT(got.order.shuffle, true);
    CHECK_INT(got.order.reset_token, 4000000000);
    CHECK_INT(got.order.reset_after, true);
    CHECK_INT(got.storage, DT_BF16);
    CHECK_STR(got.order.inputs, "obs/a[0:2] \"quoted\"");
    CHECK_STR(got.order.targets, "actions@+2");
    CHECK_STR(got.order.weights, "");
    CHECK_INT(got.order.stride, 5);
    CHECK_INT(got.order.time_axis, 1);
    CHECK(got.order.val_fraction == 0.1, "%.17g", got.order.val_fraction);
    CHECK_STR(got.order.episodes, "subject_*/trial_?");
    CHECK_INT(got.order.carry_state, true);
    CHECK_INT(got.order.reverse_complement, true);
    CHECK_INT(got.best_step, 900);
    CHECK(got.best_loss == state.best_loss, "best loss %.17g", got.best_loss);
    CHECK_INT(got.evaluations_since_best, 2);
    CHECK_INT(got.losses.count, 997);
    CHECK(got.losses.mean == 3.1 && got.losses.variance == 0.01, "%g ± %g", got.losses.mean,
          got.losses.variance);
    CHECK_INT(got.bad_in_a_row, 2);
    CHECK_INT(got.rollbacks, 4);
    CHECK_STR(got.left_out, "60:63");
    CHECK_STR(got.order.mask, "train");
    small_model_free(&model);
    small_model_free(&blank);
}

static void test_load_refuses(void)
{
    struct dt_trainer_state other = state_at(7);
    struct dt_shard moved[3] = {shards[0], shards[1], shards[1]};
    struct dt_dataset train = {.n_shards = 2, .shards = moved};
    const char *path = in_scratch("one/step-00000007");
    fresh_save(in_scratch("one"), &small, 7);

    moved[0].path = (char *)"elsewhere/a.h5"; // data may be moved
    other.step = other.tokens = other.skips = 0;
    CHECK_OK(load(path, &small, &other, &train, &got));
    CHECK_INT(got.step, 7);

    float first = small.weights[0];
    other.order.seed = 1;
    other.order.batch = 17;
    other.order.seq_len = 78;
    other.order.block = 65;
    other.order.shuffle = false;
    other.order.reset_token = -1;
    other.order.reset_after = false;
    other.order.stride = 3;
    other.order.time_axis = 1;
    other.order.val_fraction = 0.1;
    strcpy(other.order.episodes, "trial_*");
    strcpy(other.order.inputs, "obs/a");
    strcpy(other.order.targets, "actions");
    strcpy(other.order.mask, "expert");
    small.config.norm_eps = 1e-5;
    moved[0].count++;
    moved[1].last_hash--;
    small.weights[0] = 77;
    CHECK_FAILS(
        load(path, &small, &other, &train, &got), DT_USER,
        "run.seed is 1, the checkpoint has 9223372036854775553",
        "data.batch is 17, the checkpoint has 16", "data.seq_len is 78, the checkpoint has 77",
        "data.block is 65, the checkpoint has 64", "data.shuffle is false, the checkpoint has true",
        "data.reset_token is -1, the checkpoint has 4000000000", "data.reset_after is false",
        "data.stride is 3, the checkpoint has 0", "data.time_axis is 1, the checkpoint has 0",
        "data.val_fraction is 0.1, the checkpoint has 0",
        "data.episodes is trial_*, the checkpoint has ",
        "data.inputs is obs/a, the checkpoint has ", "data.targets is actions, ",
        "data.mask is expert, ", "model.norm_eps is 1e-05, the checkpoint has 1.25e-06",
        "shard 1, a.h5, has 600001 elements, had 600000",
        "shard 2, b \"quoted\".h5, has different data");
    CHECK(small.weights[0] == 77.0f && first != 77.0f, "a refused load wrote weights");

    small.config.norm_eps = 1.25e-6;
    train.n_shards = 3;
    moved[0] = shards[1];
    CHECK_FAILS(load_one(&small, &train), DT_USER, "data.train has 3 shards, the checkpoint has 2",
                "shard 1 is b \"quoted\".h5, the checkpoint has a.h5");
    train.n_shards = 2;
    moved[0] = shards[0];
    moved[0].first_hash--;
    CHECK_FAILS(load_one(&small, &train), DT_USER, "shard 1, a.h5, has different");
    moved[0] = shards[0];
    moved[0].data_hash++;
    CHECK_FAILS(load_one(&small, &train), DT_USER, "shard 1, a.h5, has different");
    moved[0].file_bytes--;
    CHECK_FAILS(load_one(&small, &train), DT_USER, "has 1234566 bytes");
}

static void test_other_model(void)
{
    struct small_model model = small_model_make(true), untied = small_model_make(false);
    fresh_save(in_scratch("one"), &model, 7);
    untied.config.d_model = 13;
    untied.config.n_layer = 2;
    untied.config.vocab_size = 38;
    WHOLE_OF(untied.config, d_state) = 6;
    WHOLE_OF(untied.config, d_conv) = 4;
    WHOLE_OF(untied.config, expand) = 2;
    WHOLE_OF(untied.config, dt_rank) = 9;
    CHECK_FAILS(
        load_one(&untied, &dataset), DT_USER, "model.d_model is 13, the checkpoint has 12",
        "model.n_layer is 2, the checkpoint has 1", "model.vocab_size is 38, the checkpoint has 37",
        "model.d_state is 6, the checkpoint has 5", "model.d_conv is 4, the checkpoint has 3",
        "model.expand is 2, the checkpoint has 3", "model.dt_rank is 9, the checkpoint has 1",
        "model.tie_embeddings is false, the checkpoint has true");
    small_model_free(&model);
    small_model_free(&untied);
}

static void check_trainer(const char *good, const char *from, const char *to, const char *part)
{
    char text[8192];
    const char *place = strstr(good, from);
    CHECK(place, "trainer.json has no %s", from);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(place - good), good, to, place + strlen(from));
    put_text(in_one("trainer.json"), text);
    CHECK_FAILS(load_one(&small, &dataset), DT_USER, part);
}

static void test_hostile_trainer(void)
{
    fresh_save(in_scratch("one"), &small, 7);
    char *good = get_text(in_one("trainer.json"));
    check_trainer(good, "\"step\":\t7", "\"step\": -7", "step is -7");
    check_trainer(good, "\"step\":\t7", "\"step\": 7.5", "step is 7.5");
    check_trainer(good, "\"step\":\t7", "\"step\": 7, \"left_out\": \"0:9007199254740993\"",
                  "is not a list of batches");
    check_trainer(good, "\"step\":\t7", "\"step\": 1e300", "step is 1e+300");
    check_trainer(good, "\"step\":\t7", "\"stop\": 7", "step is missing");
    check_trainer(good, "\"format\":\t1", "\"format\": 3",
                  "a newer dtrain wrote this checkpoint, in format 3; this one reads");
    check_trainer(good, "\"format\":\t1", "\"format\": 0", "format is 0");
    check_trainer(good, "\"9223372036854775553\"", "1337", "seed is 1337");
    check_trainer(good, "\"9223372036854775553\"", "\"-1\"", "seed is \"-1\"");
    check_trainer(good, "\"9223372036854775553\"", "\"9223372036854775808\"", "seed is");
    check_trainer(good, "fedcba9876543210", "fedcba987654321", "first_hash is");
    check_trainer(good, "fedcba9876543210", "fedcba987654321G", "first_hash is");
    check_trainer(good, "fedcba9876543210", "fedcba9876543210G", "first_hash is");
    check_trainer(good, "0123456789abcdef", "0123456789abcde", "data_hash is");
    check_trainer(good, "\"a.h5\"", "[]", "name is []");
    check_trainer(good, "\"bf16\"", "\"fp16\"", "storage is \"fp16\"");
    check_trainer(good, "\"shards\":\t[", "\"shards\": 1, \"x\":[", "shards is 1");
    free(good);
}

// Checkpoints that were written before trainer.json had the storage type.
static void test_no_storage(void)
{
    fresh_save(in_scratch("one"), &small, 7);
    CHECK_OK(dt_checkpoint_state(in_scratch("one/step-00000007"), &got));
    CHECK_INT(got.storage, DT_BF16);
    char *text = get_text(in_one("trainer.json")), *field = strstr(text, "\"storage\"");
    CHECK(field, "trainer.json has no storage");
    CHECK(!strstr(text, "carry_state") && !strstr(text, "best"),
          "fields that say nothing are written");
    memcpy(field, "\"garbage\"", 9);
    put_text(in_one("trainer.json"), text);
    CHECK_OK(load_one(&small, &dataset));
    CHECK_INT(got.storage, -1);
    free(text);
}

// Checkpoints that were written before trainer.json had data_hash: the other hashes still tell
// shards apart.
static void test_no_data_hash(void)
{
    struct dt_shard moved[2] = {shards[0], shards[1]};
    struct dt_dataset train = {.n_shards = 2, .shards = moved};
    fresh_save(in_scratch("one"), &small, 7);
    char *text = get_text(in_one("trainer.json")), *field = strstr(text, "\"data_hash\"");
    CHECK(field && !strstr(field + 1, "\"data_hash\""), "trainer.json has not one data_hash");
    memcpy(field, "\"data_cash\"", 11);
    put_text(in_one("trainer.json"), text);
    CHECK_OK(load_one(&small, &train));
    moved[0].data_hash++;
    CHECK_OK(load_one(&small, &train));
    moved[0].last_hash++;
    CHECK_FAILS(load_one(&small, &train), DT_USER, "shard 1, a.h5, has different");
    free(text);
}

struct range { // elements [first, last) of row's m (kind 0) or v (kind 1)
    int row, kind;
    int64_t first, last;
};

static void write_ranges(const char *path, const struct range *ranges, int n, bool stamped)
{
    struct dt_safetensors_entry entries[64] = {0};
    char names[64][192];
    struct dt_safetensors_writer *writer;
    for (int i = 0; i < n; i++) {
        const struct range *r = &ranges[i];
        snprintf(names[i], sizeof names[i], "%s.%s[%lld:%lld]", r->kind ? "exp_avg_sq" : "exp_avg",
                 small.params.rows[r->row].name, (long long)r->first, (long long)r->last);
        entries[i] = (struct dt_safetensors_entry){
            .name = names[i], .dtype = DT_F32, .n_dims = 1, .shape = {r->last - r->first}};
    }
    struct dt_trainer_state state = state_at(7);
    char run[24];
    snprintf(run, sizeof run, "%016" PRIx64, dt_trainer_stamp(&state).run);
    const char *const metadata[] = {"run", run, "step", "7"};
    CHECK_OK(dt_safetensors_create(path, entries, n, metadata, stamped ? 2 : 0, &writer));
    for (int i = 0; i < n; i++) {
        const float *from = ranges[i].kind ? small.v : small.m;
        from += small.params.rows[ranges[i].row].offset + ranges[i].first;
        CHECK_OK(dt_safetensors_write(writer, from, (ranges[i].last - ranges[i].first) * 4));
    }
    CHECK_OK(dt_safetensors_finish(writer, NULL, NULL));
}

// What write_split makes wrong: the ends of the range number `made` are moved by `first` and
// `last`. File i has a stamp if bit i of `stamped` is set.
struct spoil {
    int made;
    int64_t first, last;
    unsigned stamped;
};

// Splits every tensor into three parts and deals them to three files, the last part first, as a run
// with another number of ranks would.
static void write_split(struct spoil spoil)
{
    struct range ranges[3][64];
    int n[3] = {0}, made = 0;
    for (int row = 0; row < small.params.n; row++)
        for (int kind = 0; kind < 2; kind++)
            for (int part = 2; part >= 0; part--, made++) {
                int64_t count = small.params.rows[row].file_count;
                bool moved = made == spoil.made;
                int file = (row + part) % 3;
                ranges[file][n[file]++] =
                    (struct range){row, kind, count * part / 3 + (moved ? spoil.first : 0),
                                   count * (part + 1) / 3 + (moved ? spoil.last : 0)};
            }
    char name[64];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "optimizer-%05d-of-00003.safetensors", i + 1);
        write_ranges(in_one(name), ranges[i], n[i], spoil.stamped >> i & 1);
    }
}

// Rewrites MANIFEST for the files that exist and these files of the optimizer.
static void rewrite_manifest(int n, const char *const *optimizer_files)
{
    const char *names[6] = {"config.json", "model.safetensors", "trainer.json"};
    char text[1024];
    int used = 0;
    for (int i = 0; i < 3 + n; i++) {
        names[i] = i < 3 ? names[i] : optimizer_files[i - 3];
        uint64_t hash;
        int64_t size;
        CHECK_OK(dt_hash_file(in_one(names[i]), &hash, &size));
        used += snprintf(text + used, sizeof text - (size_t)used, "%016" PRIx64 " %" PRId64 " %s\n",
                         hash, size, names[i]);
    }
    put_text(in_one("MANIFEST"), text);
}

static dt_status load_split(void)
{
    static const char *const names[] = {"optimizer-00003-of-00003.safetensors",
                                        "optimizer-00001-of-00003.safetensors",
                                        "optimizer-00002-of-00003.safetensors"};
    forget(&loaded);
    rewrite_manifest(3, names);
    CHECK_OK(dt_checkpoint_verify(in_scratch("one/step-00000007")));
    return load_one(&loaded, &dataset);
}

static void test_split_optimizer(void)
{
    fresh_save(in_scratch("one"), &small, 7);
    unlink(in_one(optimizer));
    write_split((struct spoil){.made = -1});
    CHECK_OK(load_split());
    check_same(&small, &loaded);
    // In m of row 1: elements are missing, elements are there twice, the last element is missing.
    const struct dt_param *row = &small.params.rows[1];
    const struct {
        struct spoil spoil;
        bool twice;
        int64_t element;
    } spoils[] = {{{7, 1, 0, 0}, false, row->file_count / 3},
                  {{7, -1, 0, 0}, true, row->file_count / 3 - 1},
                  {{6, 0, -1, 0}, false, row->file_count - 1}};
    for (int i = 0; i < 3; i++) {
        char says[256];
        snprintf(says, sizeof says, "%selement %" PRId64 " of exp_avg.%s%s",
                 spoils[i].twice ? "duplicate " : "", spoils[i].element, row->name,
                 spoils[i].twice ? "" : " is missing");
        write_split(spoils[i].spoil);
        CHECK_FAILS(load_split(), DT_USER, says);
    }
    // Either all files have a stamp or, in checkpoints of an older dtrain, none has.
    for (unsigned stamped = 0; stamped < 8; stamped++) {
        write_split((struct spoil){.made = -1, .stamped = stamped});
        if (stamped == 0 || stamped == 7)
            CHECK_OK(load_split());
        else
            CHECK_FAILS(load_split(), DT_USER, "are not of one checkpoint");
    }
}

// A file of another checkpoint of the same model under a MANIFEST made by hand. The stamp of a file
// has the step and a hash of what trainer.json says about the run.
static void test_other_part(void)
{
    struct dt_checkpoint_arrays arrays = arrays_of(&small);
    const char *const names[] = {optimizer};
    for (int i = 0; i < 10; i++) {
        struct dt_trainer_state state = state_at(7);
        char path[DT_PATH], *part;
        int64_t size;
        state.losses = (struct dt_loss_statistics){3.25, 0.1, 7};
        fresh_save(in_scratch("one"), &small, 7);
        CHECK_OK(dt_remove_tree(in_scratch("one")));
        CHECK_OK(save_arrays(in_scratch("one"), &arrays, &state, path));
        state.order.seed ^= i == 1;
        state.order.batch += i == 2;
        state.order.seq_len += i == 3;
        state.tokens -= i == 4;
        state.updates -= i == 5;
        state.losses.mean += i == 6 ? 1e-15 : 0;
        state.losses.variance += i == 7 ? 1e-15 : 0;
        state.step += i == 8;
        strcpy(state.device, "another"); // the device does not affect the numbers
        state.best_step = i == 9 ? 3 : state.best_step;
        CHECK_OK(dt_remove_tree(in_scratch("two")));
        CHECK_OK(save_arrays(in_scratch("two"), &arrays, &state, path));
        strcat(path, "/");
        CHECK_OK(dt_read_file(strcat(path, optimizer), 1 << 16, &part, &size));
        put_bytes(in_one(optimizer), part, size);
        free(part);
        rewrite_manifest(1, names);
        CHECK_OK(dt_checkpoint_verify(in_scratch("one/step-00000007")));
        forget(&loaded);
        dt_status status = load_one(&loaded, &dataset);
        if (i == 0 || i == 9) {
            CHECK_OK(status);
            check_same(&small, &loaded);
            continue;
        }
        CHECK_FAILS(status, DT_USER, optimizer,
                    i == 8 ? "is of step 8, trainer.json beside it of step 7"
                           : "is of another run than trainer.json beside it");
    }
}

// Values that training never leaves, in files with right checksums.
static void test_damaged_moments(void)
{
    int row = (int)(dt_params_find(&small.params, "backbone.norm_f.weight") - small.params.rows);
    int64_t at = small.params.rows[row].offset + 7;
    struct {
        float *moment, value;
        const char *says;
    } cases[] = {
        {small.m, NAN,
         "-of-00003.safetensors: exp_avg.backbone.norm_f.weight holds nan at element 7; all must "
         "be "},
        {small.m, -INFINITY, "exp_avg.backbone.norm_f.weight holds -inf at element 7; all must be"},
        {small.v, NAN, "exp_avg_sq.backbone.norm_f.weight holds nan at element 7; all must be 0"},
        {small.v, -1e-30f, "holds -1e-30 at element 7; all must be 0 or more"},
    };
    fresh_save(in_scratch("one"), &small, 7);
    unlink(in_one(optimizer));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float good = cases[i].moment[at];
        cases[i].moment[at] = cases[i].value;
        write_split((struct spoil){.made = -1}); // splits each tensor into three ranges
        CHECK_FAILS(load_split(), DT_USER, cases[i].says);
        cases[i].moment[at] = good;
    }
    small.v[at] = INFINITY; // the square of a large gradient
    write_split((struct spoil){.made = -1});
    CHECK_OK(load_split());
    check_same(&small, &loaded);
}

static void test_hostile_ranges(void)
{
    static const char *const names[] = {"exp_avg.backbone.norm_f.weight",
                                        "exp_avg.backbone.norm_f.weight[0:13]",
                                        "exp_avg.backbone.norm_f.weight[-1:11]",
                                        "exp_avg.backbone.norm_f.weight[0:12",
                                        "exp_avg.backbone.norm_f.weight[0:12]x",
                                        "exp_avg.backbone.norm_f.weight[1:13]",
                                        "exp_avg.backbone.norm_f.weight[0:11]",
                                        "exp_avg.backbone.norm_f.weight[12:0]",
                                        "exp_avg.backbone.norm[0:12]",
                                        "exp_avg_sq.backbone.norm_f.weights[0:12]",
                                        "momentum.backbone.norm_f.weight[0:12]",
                                        "exp_avg.backbone.norm_f.weight[0:99999999999999999999]",
                                        "",
                                        "exp_avg."};
    fresh_save(in_scratch("one"), &small, 7);
    write_split((struct spoil){.made = -1});
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const float zeros[12] = {0};
        struct dt_safetensors_entry entry = {
            .name = names[i], .dtype = DT_F32, .n_dims = 1, .shape = {12}};
        struct dt_safetensors_writer *writer;
        const char *path = in_one("optimizer-00003-of-00003.safetensors");
        CHECK_OK(dt_safetensors_create(path, &entry, 1, NULL, 0, &writer));
        CHECK_OK(dt_safetensors_write(writer, zeros, sizeof zeros));
        CHECK_OK(dt_safetensors_finish(writer, NULL, NULL));
        CHECK_FAILS(load_split(), DT_USER, "optimizer-00003-of-00003.safetensors");
    }
}

// Rows that an older dtrain did not have get their initial values, and states of 0.
static void test_older_program(void)
{
    struct small_model model = small_model_make(false), blank = make_blank(false);
    struct dt_checkpoint_arrays arrays = arrays_of(&model);
    struct dt_params older = model.params;
    struct dt_trainer_state state = state_at(7);
    char path[DT_PATH];
    int last = --older.n;
    struct dt_param *row = &blank.params.rows[last];
    arrays.params = &older;
    CHECK_OK(dt_remove_tree(in_scratch("one")));
    CHECK_OK(save_arrays(in_scratch("one"), &arrays, &state, path));
    CHECK_FAILS(load_one(&blank, &dataset), DT_USER, row->name);
    dt_params_allow_missing(&blank.params, last);
    row->init = dt_init_one;
    CHECK_OK(load_one(&blank, &dataset));
    for (int64_t i = 0; i < row->file_count; i++) {
        CHECK_NEAR(blank.weights[row->offset + i], 1, 0);
        CHECK_NEAR(blank.m[row->offset + i], 0, 0);
        CHECK_NEAR(blank.v[row->offset + i], 0, 0);
        model.weights[row->offset + i] = 1;
        model.m[row->offset + i] = model.v[row->offset + i] = 0;
    }
    check_same(&model, &blank);
    small_model_free(&model);
    small_model_free(&blank);
}

int main(void)
{
    make_scratch();
    small = small_model_make(true);
    loaded = make_blank(true);
    test_round_trip(true);
    test_round_trip(false);
    test_load_refuses();
    test_other_model();
    test_hostile_trainer();
    test_no_storage();
    test_no_data_hash();
    test_split_optimizer();
    test_other_part();
    test_damaged_moments();
    test_hostile_ranges();
    test_older_program();
    small_model_free(&small);
    small_model_free(&loaded);
    remove_scratch();
    return test_end();
}
