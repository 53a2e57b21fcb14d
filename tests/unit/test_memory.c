// Tests what fits into the memory of a device: the search over recomputation and micro-batches, and
// the message.
#include "comm/device_comm.h"
#include "train/evaluate.h"
#include "train/memory.h"
#include "train/predict.h"
#include "train/propose.h"

#include "small_model.h"

// A plan of 1000 bytes and, for each sequence, 300, 100 or 60 bytes.
static dt_status plan(void *context, enum dt_recompute recompute, int64_t micro_batch,
                      int64_t *bytes)
{
    static const int64_t each[] = {300, 100, 60};
    int *calls = context;
    ++*calls;
    CHECK(24 % micro_batch == 0, "%lld does not divide the share", (long long)micro_batch);
    *bytes = 1000 + each[recompute] * micro_batch;
    return DT_OK;
}

static int search_in(enum dt_sum_order order, int64_t free, struct dt_fit found[3])
{
    int n = -1, calls = 0;
    CHECK_OK(dt_fit_search(plan, &calls, 24, order, free, found, &n));
    CHECK(calls > 0, "a plan was asked for");
    return n;
}

static int search(int64_t free, struct dt_fit found[3])
{
    return search_in(DT_SUM_FAST, free, found);
}

#define CHECK_FIT(fit, kind, micro, size)                                                          \
    do {                                                                                           \
        CHECK_INT((fit).recompute, kind);                                                          \
        CHECK_INT((fit).micro_batch, micro);                                                       \
        CHECK_INT((fit).bytes, size);                                                              \
    } while (0)

static void test_search(void)
{
    struct dt_fit found[3];
    CHECK_INT(search(1000 + 24 * 300, found), 1); // fits exactly
    CHECK_FIT(found[0], DT_RECOMPUTE_NONE, 24, 8200);
    CHECK_INT(search(1000 + 24 * 300 - 1, found), 2);
    CHECK_FIT(found[0], DT_RECOMPUTE_NONE, 12, 4600);
    CHECK_FIT(found[1], DT_RECOMPUTE_SCAN, 24, 3400);
    CHECK_INT(search(1700, found), 3);
    CHECK_FIT(found[0], DT_RECOMPUTE_NONE, 2, 1600);
    CHECK_FIT(found[1], DT_RECOMPUTE_SCAN, 6, 1600);
    CHECK_FIT(found[2], DT_RECOMPUTE_BLOCK, 8, 1480);
    CHECK_INT(search(1299, found), 2); // without recomputation not even one sequence fits
    CHECK_FIT(found[0], DT_RECOMPUTE_SCAN, 2, 1200);
    CHECK_FIT(found[1], DT_RECOMPUTE_BLOCK, 4, 1240);
    CHECK_INT(search(1059, found), 0);
    // With reproducible sums a micro-batch may have 24, 12, 6 or 3 sequences: the number of
    // micro-batches must be a power of two.
    CHECK_INT(search_in(DT_SUM_TREE, 1700, found), 1);
    CHECK_FIT(found[0], DT_RECOMPUTE_SCAN, 6, 1600);
}

// A device that differs from the CPU only in its memory, and a communicator between such devices.
static struct dt_device_table table;
static const struct dt_device_comm_table between = {.name = "between"};
const struct dt_device_comm_table *const dt_device_comm_known = &between;
static int64_t memory, memory_free;

static dt_status info(struct dt_device *device, struct dt_device_info *info)
{
    (void)device;
    *info =
        (struct dt_device_info){.name = "Device 7", .memory = memory, .memory_free = memory_free};
    return DT_OK;
}

static void open_job(struct dt_job *job, struct small_model *model)
{
    *model = small_model_make(true);
    *job =
        (struct dt_job){.model = model->config,
                        .local_batch = 12,
                        .micro_batch = 12,
                        .ranks_on_device = 1,
                        .settings.comm.context = 1,
                        .settings.data = {.seq_len = 64, .batch = 12, .block = 4, .prefetch = 2}};
    CHECK_OK(dt_comm_open(DT_COMM_KIND_SELF, &job->comm));
    CHECK_OK(dt_backend_open("cpu", 0, 1, &job->backend));
    CHECK_OK(dt_dataset_scan(
        "synthetic:random", &(struct dt_scan_rules){.seq_len = 64, .vocab_size = 37}, &job->train));
    table = *job->backend.table;
    table.unified = false;
    table.info = info;
    job->backend.table = &table;
}

static void close_job(struct dt_job *job, struct small_model *model)
{
    dt_dataset_free(job->train);
    dt_backend_close(&job->backend);
    dt_comm_close(job->comm);
    small_model_free(model);
}

static int64_t device_bytes(struct dt_job *job, enum dt_recompute recompute, int64_t micro_batch)
{
    struct dt_memory_plan plan = {0};
    struct dt_job other = *job;
    other.model.recompute = recompute;
    other.micro_batch = micro_batch;
    CHECK_OK(dt_job_memory(&other, &plan));
    return dt_memory_plan_bytes(&plan, false);
}

static int64_t row_bytes(const struct dt_memory_plan *plan, const char *what)
{
    for (int i = 0; i < plan->n; i++)
        if (strcmp(plan->rows[i].what, what) == 0)
            return plan->rows[i].bytes;
    return 0;
}

static void test_plan(void)
{
    struct dt_memory_plan plan = {0};
    char names[40][16];
    dt_memory_plan_add(&plan, "none", 0, false);
    dt_memory_plan_add(&plan, "a", 1, false);
    dt_memory_plan_add(&plan, "b", 10, true);
    dt_memory_plan_add(&plan, "a", 100, false);
    CHECK_INT(plan.n, 2);
    CHECK_INT(plan.rows[0].bytes, 101);
    CHECK_INT(dt_memory_plan_bytes(&plan, false), 101);
    CHECK_INT(dt_memory_plan_bytes(&plan, true), 111);
    for (int i = 0; i < 40; i++) { // there are more names than rows, and all are counted
        snprintf(names[i], sizeof names[i], "row %d", i);
        dt_memory_plan_add(&plan, names[i], 1000, false);
    }
    CHECK_INT(plan.n, DT_MEMORY_ROWS);
    CHECK_INT(dt_memory_plan_bytes(&plan, false), 40101);
    dt_memory_plan_add(&plan, "more", 1, true); // "others" is of the device, as most of it is
    CHECK_INT(dt_memory_plan_bytes(&plan, false), 40102);
}

static void test_job(void)
{
    struct dt_job job;
    struct small_model model;
    char advice[128];
    open_job(&job, &model);
    int64_t whole = device_bytes(&job, DT_RECOMPUTE_NONE, 12);
    int64_t half = device_bytes(&job, DT_RECOMPUTE_NONE, 6);
    struct dt_memory_plan staged = {0};
    CHECK_OK(dt_job_memory(&job, &staged));
    CHECK_INT(row_bytes(&staged, "optimizer states"), 2 * 4 * model.params.elements);
    CHECK_INT(row_bytes(&staged, "host snapshot"), 4 * 4 * model.params.elements); // and a piece
    CHECK(half < whole, "a smaller micro-batch takes less");
    struct dt_job other = job;
    struct dt_memory_plan more = {0};
    int64_t state;
    other.settings.optim.ema = 0.9;
    other.settings.data.carry_state = true;
    other.steps_per_epoch = 1;
    other.micro_batch = 4;
    CHECK_OK(dt_model_state_bytes(&job.model, 4, &state));
    CHECK_OK(dt_job_memory(&other, &more));
    CHECK_INT(row_bytes(&more, "optimizer states"), 3 * 4 * model.params.elements);
    CHECK_INT(row_bytes(&more, "host snapshot"), 5 * 4 * model.params.elements);
    // The states of two batches, and two within a pass.
    CHECK_INT(row_bytes(&more, "carried state"), 8 * state);
    CHECK_INT(row_bytes(&more, "host states"), 3 * state);

    // Sums of eight micro-batches by a tree need gradients for each level of the tree.
    struct dt_memory_plan tree = {0};
    other = job;
    other.settings.comm.reduce = DT_REDUCE_REPRODUCIBLE;
    other.local_batch = 8, other.micro_batch = 1;
    CHECK_OK(dt_job_memory(&other, &tree));
    CHECK_INT(row_bytes(&tree, "gradient sums"), 3 * 4 * model.params.elements);
    // Rank 0 gathers the profiles of all ranks, the other ranks have only their own.
    int64_t profiles[3];
    other = job;
    other.settings.log.profile = true;
    for (int ranks = 1; ranks <= 3; ranks++) {
        struct dt_memory_plan profiled = {0};
        job.comm->info.size = ranks;
        CHECK_OK(dt_job_memory(&other, &profiled));
        profiles[ranks - 1] = row_bytes(&profiled, "host profile");
    }
    job.comm->info.size = 1;
    CHECK(profiles[1] - profiles[0] > 1000, "a second profile has %lld bytes",
          (long long)(profiles[1] - profiles[0]));
    CHECK_INT(profiles[2] - profiles[1], profiles[1] - profiles[0]);
    memory_free = whole;
    CHECK_OK(dt_job_check_memory(&job));
    memory_free = whole - 1;
    CHECK_INT(dt_job_check_memory(&job), DT_MACHINE);
    CHECK_SAYS("Device 7 has", "activations ");
    other.micro_batch = 12;
    other.settings.data.prefetch = 6400; // on the host, whose memory is not the device's
    CHECK_INT(dt_job_check_memory(&other), DT_MACHINE);
    const char *most = strstr(dt_error_current()->message, "most of it for");
    CHECK(most && !strstr(most, "host "), "%s", most);
    CHECK_INT(dt_job_check_memory(&job), DT_MACHINE);
    snprintf(advice, sizeof advice,
             "data.micro_batch = 6 with model.recompute = none needs %.1f MiB",
             (double)half / 0x1p20);
    CHECK_ADVISES(advice);
    // Half the batch would fill it and leave no room for what is not planned.
    memory_free = half + half / 128;
    CHECK_INT(dt_job_check_memory(&job), DT_MACHINE);
    CHECK(!strstr(dt_error_current()->hint, "micro_batch = 6 with model.recompute = none"), "%s",
          dt_error_current()->hint);

    // Code that is loaded later needs memory beside the plan, on a single device too.
    memory = 128 * 1000;
    memory_free = whole + 1000;
    CHECK_OK(dt_job_check_memory(&job));
    memory_free = whole + 999;
    CHECK_FAILS(dt_job_check_memory(&job), DT_MACHINE, "free after what is reserved for code");
    memory = INT64_C(80) << 30; // at most half a GiB, however large the device is
    memory_free = whole + (INT64_C(1) << 29);
    CHECK_OK(dt_job_check_memory(&job));
    memory_free--;
    CHECK_INT(dt_job_check_memory(&job), DT_MACHINE);
    memory = 128 * 1000; // NCCL needs twice as much more
    job.comm->info.size = 2;
    table.device_comm = true;
    memory_free = device_bytes(&job, DT_RECOMPUTE_NONE, 12) + 3000;
    CHECK_OK(dt_job_check_memory(&job));
    memory_free--;
    CHECK_FAILS(dt_job_check_memory(&job), DT_MACHINE, "free after what is reserved for NCCL");
    const struct dt_device_info device = {.memory = memory};
    CHECK_INT(dt_job_reserved_memory(&job, &device), 3000);
    job.settings.comm.context = 2; // messages need as much again as code
    CHECK_INT(dt_job_reserved_memory(&job, &device), 4000);
    job.settings.comm.reduce = DT_REDUCE_REPRODUCIBLE; // and so do sums
    CHECK_INT(dt_job_reserved_memory(&job, &device), 5000);
    job.settings.comm.reduce = DT_REDUCE_FAST;
    job.settings.comm.context = 1;
    job.comm->info.size = 1;
    table.device_comm = false;
    memory = 0;

    memory_free = 2 * whole - 1;
    job.ranks_on_device = 2;
    CHECK_FAILS(dt_job_check_memory(&job), DT_MACHINE, "free for each rank that shares it");
    job.ranks_on_device = 1;
    memory_free = 1000;
    CHECK_INT(dt_job_check_memory(&job), DT_MACHINE);
    CHECK_ADVISES("no data.micro_batch or model.recompute would fit");
    table.unified = true;
    struct dt_memory_plan plan = {0};
    CHECK_OK(dt_job_memory(&job, &plan));
    CHECK(dt_memory_plan_bytes(&plan, true) > whole,
          "batches on the host count where that is the device's memory");
    CHECK_INT(row_bytes(&plan, "host snapshot"), 3 * 4 * model.params.elements); // without a piece
    memory = 2 * dt_memory_plan_bytes(&plan, true);
    job.comm->info.local_size = 2;
    CHECK_OK(dt_job_check_memory(&job)); // the memory that is free now does not matter
    memory--;
    CHECK_FAILS(dt_job_check_memory(&job), DT_MACHINE, "for each of the 2 ranks on it");
    close_job(&job, &model);
}

// Whatever is proposed must be accepted. Attention that sees both ways takes any number of whole
// windows at a time, but in segments one sequence.
static void test_proposals(void)
{
    struct dt_job job;
    struct small_model model;
    struct dt_proposal proposal;
    int segments = 0;
    open_job(&job, &model);
    job.model = default_model("mamba attention", 12, 37);
    job.model.direction = DT_DIRECTION_BOTH;
    snprintf(job.model.heads, sizeof job.model.heads, "mlm");
    WHOLE_OF(job.model, mask_token) = 1;
    CHECK_OK(dt_model_config_normalize(&job.model));
    CHECK_OK(dt_model_config_resolve(&job.model, 512));
    job.settings.data.seq_len = 512;
    const int64_t whole = device_bytes(&job, DT_RECOMPUTE_NONE, 12);
    for (memory_free = whole - 1; memory_free > whole / 4; memory_free -= whole / 64) {
        struct dt_job other = job;
        CHECK_INT(dt_job_check_memory(&job), DT_MACHINE);
        const char *hint = strstr(dt_error_current()->hint, "model.segment");
        long long segment, micro = job.micro_batch;
        double mib = 0;
        if (hint && sscanf(hint, "model.segment = %lld with data.micro_batch = %lld needs %lf MiB",
                           &segment, &micro, &mib) > 0) {
            segments++;
            other.micro_batch = micro, other.model.segment = segment;
            CHECK_OK(dt_job_settle_segment(&other));
            CHECK_OK(dt_job_check_memory(&other));
            CHECK_NEAR(mib, (double)device_bytes(&other, DT_RECOMPUTE_NONE, micro) / 0x1p20, 0.06);
        }
        dt_error_clear();
    }
    CHECK(segments > 4, "%d proposals have segments", segments);
    CHECK_OK(dt_propose(&job, "h100-80", &proposal));
    CHECK_INT(proposal.batches[0].micro_batch, 12);
    job.micro_batch = 1, job.model.segment = 128;
    CHECK_OK(dt_job_settle_segment(&job));
    CHECK_OK(dt_propose(&job, "h100-80", &proposal));
    CHECK_INT(proposal.n_batches, 1);
    CHECK_INT(proposal.batches[0].micro_batch, 1);
    close_job(&job, &model);
}

// The number of rows in a tile of logits is what the backend likes, from 128 to 4096, but at most
// the number of rows and at least one for each sequence.
static void test_logits(void)
{
    static const struct {
        int64_t liked, sequences, length, rows;
    } cases[] = {{0, 3, 171, 128}, {200, 3, 171, 200}, {200, 2, 32, 64},
                 {1, 200, 1, 200}, {1, 200, 3, 200},   {1 << 20, 3, 9999, 4096}};
    struct dt_model_config config = default_model("mamba", 12, 40);
    struct dt_backend backend;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &backend));
    struct dt_op_table op = *backend.op;
    backend.op = &op;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_memory_plan plan = {0};
        const struct dt_model_shape shape = {
            .sequences = cases[i].sequences, .length = cases[i].length, .training = true};
        op.logits_tile = 40 * cases[i].liked;
        CHECK_OK(dt_model_plan(&backend, &config, &shape, &plan, NULL));
        int64_t right = dt_round_up(cases[i].sequences * cases[i].length, DT_ARENA_ALIGN);
        CHECK_INT(row_bytes(&plan, "logits"), 40 * 4 * cases[i].rows + right);
    }
    dt_backend_close(&backend);
}

// Checks what a job's settings become in the step and in both loaders. All values differ.
static void test_settings(void)
{
    struct dt_dataset train = {0}, val = {0};
    struct dt_comm comm = {.info = {.rank = 1, .size = 3, .local_size = 3}};
    struct dt_job job = {.comm = &comm,
                         .train = &train,
                         .val = &val,
                         .train_shards = (void *)&train,
                         .val_shards = (void *)&val,
                         .model = default_model("mamba", 12, 37),
                         .settings.comm.context = 1,
                         .local_batch = 4,
                         .micro_batch = 2,
                         .mean = (float[1]){0},
                         .deviation = (float[1]){1},
                         .steps_per_epoch = 77};
    struct dt_settings *s = &job.settings;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &job.backend));
    s->run.seed = 5, s->data.seq_len = 64, s->data.batch = 12, s->data.block = 8;
    s->data.prefetch = 9, s->data.reset_token = 10, s->data.verify = s->data.shuffle = true;
    s->optim.beta1 = 0.1, s->optim.beta2 = 0.2, s->optim.eps = 0.3, s->optim.weight_decay = 0.4;
    s->optim.grad_clip = 0.5, s->optim.ema = 0.6, s->comm.bucket_mb = 25;
    struct dt_stepper_config step = dt_job_stepper(&job);
    CHECK_INT(step.batch.sequences, 4);
    CHECK_INT(step.batch.length, 64);
    CHECK_INT(step.batch.micro, 2);
    CHECK_INT(step.tokens, 12 * 64);
    const float rates[] = {step.optimizer.beta1,     step.optimizer.beta2,
                           step.optimizer.eps,       step.optimizer.weight_decay,
                           step.optimizer.grad_clip, step.optimizer.ema};
    for (int i = 0; i < 6; i++)
        CHECK_NEAR(rates[i], 0.1 * (i + 1), 1e-6);
    CHECK_INT(step.bucket_bytes, 25000000);
    CHECK(step.wire == DT_F32 && step.order == DT_SUM_FAST && !step.shard && step.graphs,
          "defaults");
    CHECK(!step.selftest && !step.between_devices && step.carry_steps == 0, "defaults");
    s->comm.dtype = DT_WIRE_BF16, s->comm.reduce = DT_REDUCE_REPRODUCIBLE, s->optim.shard = true;
    s->run.cuda_graph = DT_TOGGLE_FALSE, s->data.carry_state = true,
    s->comm.selftest = DT_TOGGLE_TRUE;
    step = dt_job_stepper(&job);
    CHECK(step.wire == DT_BF16 && step.order == DT_SUM_TREE && step.shard && !step.graphs, "given");
    CHECK(step.selftest && step.carry_steps == 77, "given");
    struct dt_loader_config loaders[] = {dt_job_train_loader(&job), dt_job_val_loader(&job)};
    for (int i = 0; i < 2; i++) {
        const struct dt_loader_config *l = &loaders[i];
        CHECK(l->dataset == (i ? &val : &train) && l->shards == (void *)l->dataset, "loader %d", i);
        CHECK(l->shuffle == (i == 0) && l->sequential == (i == 1) && l->parts == (i == 1),
              "loader %d", i);
        CHECK(l->batch == 12 && l->block == 8 && l->prefetch == 9 && l->rank == 1 && l->size == 3,
              "loader %d", i);
        CHECK(l->rules.seed == 5 && l->rules.vocab_size == 37 && l->rules.reset_token == 10,
              "loader %d", i);
        CHECK(l->rules.verify && l->rules.carry && !l->rules.reset_after, "loader %d", i);
        CHECK(l->rules.mean == job.mean && l->rules.deviation == job.deviation, "loader %d", i);
    }
    s->data.carry_state = false, s->data.reset_after = true;
    loaders[0] = dt_job_train_loader(&job), loaders[1] = dt_job_val_loader(&job);
    CHECK(loaders[0].rules.reset_after && !loaders[0].rules.carry && !loaders[1].parts, "no carry");
    comm.info.size = 6, comm.info.rank = 5, s->comm.context = 2;
    loaders[0] = dt_job_train_loader(&job);
    CHECK(loaders[0].rank == 2 && loaders[0].size == 3, "the last of three groups: %d of %d",
          loaders[0].rank, loaders[0].size);
    step = dt_job_stepper(&job);
    CHECK(step.batch.context == 2 && step.batch.comm == &comm, "a group");
    CHECK(dt_job_shape(&job, true).training && !dt_job_shape(&job, false).training, "shape");
    CHECK_INT(dt_job_shape(&job, true).sequences, 2);
    CHECK_INT(dt_job_shape(&job, true).length, 64);
    dt_backend_close(&job.backend);
}

// The AUC of three buttons needs 8 bytes each for every validated row, on the rank that has the
// row: for all windows, or for log.eval_batches batches of each source.
static void test_scores(void)
{
    static const struct {
        int64_t batches, ranks, rows;
    } cases[] = {{0, 1, 1000 * 64}, {5, 1, 120 * 64}, {84, 1, 1000 * 64}, {5, 7, 1098}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_memory_plan plan = {0};
        struct dt_dataset val = {
            .windows = 1000, .n_sources = 2, .sources = {{.windows = 900}, {.windows = 100}}};
        struct dt_comm comm = {.info = {.size = (int)cases[i].ranks}};
        struct dt_job job = {.comm = &comm,
                             .val = &val,
                             .model = default_model("mamba", 32, 0),
                             .settings.comm.context = 1,
                             .settings.log.eval_batches = cases[i].batches,
                             .settings.data = {.seq_len = 64, .batch = 12}};
        snprintf(job.model.heads, sizeof job.model.heads, "buttons:bernoulli*3");
        CHECK_OK(dt_evaluation_plan(&job, &plan));
        CHECK_INT(row_bytes(&plan, "scores"), 24 * cases[i].rows);
        CHECK(plan.rows[0].host, "on the host");
    }
}

// Bytes of a segment's activations, 1 a position, and of the states at borders.
static dt_status bytes_of_segment(void *context, int64_t segment, int64_t *bytes)
{
    const int64_t length = 1000, state = *(const int64_t *)context;
    int64_t borders = segment > 0 ? dt_ceil_div(length, segment) - 1 : 0;
    *bytes = (segment > 0 ? segment : length) + borders * state;
    return DT_OK;
}

// Segments of a window of 1,000 positions.
static void test_fit_segment(void)
{
    static const struct {
        int64_t state, free, ranks, segment, bytes;
    } cases[] = {
        {0, 1000, 1, 1000, 1000}, {0, 999, 1, 512, 512}, {0, 300, 1, 256, 256},
        {0, 10, 1, 64, 64}, // nothing fits: the shortest needs least
        {0, 1000, 2, 512, 512},   {0, 500, 4, 256, 256}, {1, 260, 1, 256, 259},
        {100, 10, 1, 256, 556}, // nothing fits: shorter ones have more borders
        {600, 10, 1, 1000, 1000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t state = cases[i].state, segment, bytes;
        const struct dt_segment_choice choice = {
            .length = 1000, .unit = 64, .ranks = cases[i].ranks, .free = cases[i].free};
        CHECK_OK(dt_fit_segment(bytes_of_segment, &state, &choice, &segment, &bytes));
        CHECK_INT(segment, cases[i].segment);
        CHECK_INT(bytes, cases[i].bytes);
    }
}

// The number of segments that are predicted at a time: as many as 4096 rows, 2^28 logits, 64
// streams and an eighth of all segments allow.
static void test_predict_streams(void)
{
    static const struct {
        int64_t segments, length, vocab, streams;
    } cases[] = {
        {1000, 1, 0, 64},        {512, 64, 0, 64},
        {511, 64, 0, 64},        {504, 64, 0, 63},
        {1000, 65, 0, 63},       {1000, 4096, 0, 1},
        {1000, 9999, 0, 1},      {3, 16, 0, 1},
        {1000, 64, 1 << 16, 64}, {1000, 64, 65537, 63},
        {1000, 64, 1 << 17, 32}, {1000, 64, 1 << 22, 1},
        {1000, 64, 1 << 23, 1},  {1000, 16, INT32_MAX, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_INT(dt_predict_streams(cases[i].segments, cases[i].length, cases[i].vocab),
                  cases[i].streams);
}

int main(void)
{
    RUN(test_search, test_plan, test_logits, test_fit_segment, test_predict_streams, test_settings,
        test_scores, test_job, test_proposals);
    return test_end();
}
