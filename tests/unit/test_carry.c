// Tests carried states in training steps: a skipped step keeps the state of the step before it, an
// epoch starts from zeros, and micro-batches carry the states of their own slots.
#include "train/step.h"

#include "op_fixture.h"
#include "small_model.h"

enum { SLOTS = 4, LENGTH = 7, VOCAB = 37, EPOCH = 3 };

static const struct dt_dataset *dataset;

struct run {
    struct dt_backend backend;
    struct dt_comm *comm;
    struct dt_model *model;
    struct dt_stepper *stepper;
    struct dt_loader *loader;
    int64_t steps;
};

static void run_open(struct run *run, int64_t micro)
{
    struct small_model small = small_model_make(true);
    struct dt_model_shape shape = {.sequences = micro, .length = LENGTH, .training = true};
    struct dt_loader_config loader = {
        .dataset = dataset,
        .rules = {.seed = 3, .vocab_size = VOCAB, .reset_token = -1, .carry = true},
        .batch = SLOTS,
        .block = 4,
        .size = 1,
        .prefetch = 2};
    *run = (struct run){.steps = 0};
    CHECK_OK(dt_comm_open(DT_COMM_KIND_SELF, &run->comm));
    CHECK_OK(dt_backend_open("cpu", 0, 1, &run->backend));
    CHECK_OK(dt_model_create(&run->backend, &small.config, &shape, &run->model));
    dt_params_init(dt_model_params(run->model), 5, dt_model_weights(run->model));
    struct dt_stepper_config config = {.comm = run->comm,
                                       .batch = {SLOTS, LENGTH, micro},
                                       .tokens = SLOTS * LENGTH,
                                       .optimizer = {0.9f, 0.95f, 1e-8f, 0.0f, 1.0f, 0.0f},
                                       .bucket_bytes = 1 << 20,
                                       .carry_steps = EPOCH};
    CHECK_OK(dt_stepper_create(&run->backend, run->model, &config, &run->stepper));
    CHECK_OK(dt_stepper_connect(run->stepper));
    CHECK_OK(dt_loader_open(&loader, 0, &run->loader));
    small_model_free(&small);
}

static void run_close(struct run *run)
{
    dt_stepper_destroy(run->stepper);
    dt_loader_close(run->loader);
    dt_model_destroy(run->model);
    dt_backend_close(&run->backend);
    dt_comm_close(run->comm);
}

static struct dt_step_result step(struct run *run, double lr)
{
    struct dt_step_result result = {0};
    CHECK_OK(dt_stepper_launch(run->stepper, run->loader, ++run->steps, lr));
    CHECK_OK(dt_stepper_collect(run->stepper, &result));
    return result;
}

static char *copy_of(const struct dt_carry *carry)
{
    size_t bytes = (size_t)(carry->blocks * carry->bytes);
    return memcpy(malloc(bytes), carry->kept, bytes);
}

static bool is_kept(const struct dt_carry *carry, const char *copy)
{
    return memcmp(carry->kept, copy, (size_t)(carry->blocks * carry->bytes)) == 0;
}

// As much memory is allocated as was planned, and all of it is freed.
static void test_memory(void)
{
    struct run run;
    struct dt_carry carry;
    struct dt_memory_plan plan = {0};
    const struct dt_input_config batch = {.sequences = SLOTS, .length = LENGTH, .micro = 2};
    run_open(&run, 2);
    int64_t before = dt_memory_in_use(&run.backend);
    CHECK_OK(dt_carry_create(&run.backend, run.model, &batch, &run.comm->info, &carry));
    CHECK_OK(
        dt_carry_plan(&run.backend, dt_model_config(run.model), &batch, &run.comm->info, &plan));
    CHECK_INT(dt_memory_in_use(&run.backend) - before, dt_memory_plan_bytes(&plan, true));
    dt_carry_destroy(&carry);
    CHECK_INT(dt_memory_in_use(&run.backend), before);
    run_close(&run);
}

static void test_skipped(void)
{
    struct run run;
    run_open(&run, 2);
    const struct dt_carry *carry = &run.stepper->carry;
    char *start = copy_of(carry);
    CHECK_INT(step(&run, 1e-3).control.skip, 0);
    CHECK(!is_kept(carry, start), "a step leaves no state");
    char *first = copy_of(carry);
    float *weight = dt_model_weights(run.model), right = *weight;
    *weight = NAN;
    CHECK_INT(step(&run, 1e-3).control.skip, 1);
    CHECK(is_kept(carry, first), "a skipped step changes the state");
    *weight = right;
    CHECK_INT(step(&run, 1e-3).control.skip, 0);
    CHECK(!is_kept(carry, first), "the step after it leaves none");
    free(first);
    free(start);
    run_close(&run);
}

// The first step of an epoch does not depend on the state before it.
static void test_epoch(void)
{
    struct run runs[2];
    double losses[2];
    for (int i = 0; i < 2; i++) {
        run_open(&runs[i], SLOTS);
        struct dt_carry *carry = &runs[i].stepper->carry;
        for (int k = 0; k < EPOCH; k++)
            step(&runs[i], 0);
        CHECK_OK(dt_carry_clear(carry, carry->kept, NULL));
        if (i == 1)
            CHECK_OK(dt_fill(&runs[i].backend, carry->kept, 1, carry->bytes, NULL));
        losses[i] = step(&runs[i], 0).control.loss;
        run_close(&runs[i]);
    }
    CHECK(losses[0] == losses[1], "%.17g, not %.17g", losses[1], losses[0]);
}

// Each slot has the same state, whatever the size of micro-batches.
static void test_micro_batches(void)
{
    struct run whole, parts;
    run_open(&whole, SLOTS);
    run_open(&parts, 1);
    for (int k = 0; k < 2; k++) {
        double a = step(&whole, 0).control.loss, b = step(&parts, 0).control.loss;
        CHECK_NEAR(b, a, 1e-6);
    }
    struct dt_carry *a = &whole.stepper->carry, *b = &parts.stepper->carry;
    CHECK_OK(dt_carry_gather(a, whole.comm));
    CHECK_OK(dt_carry_gather(b, parts.comm));
    CHECK_INT(a->slots.slots, SLOTS);
    CHECK_INT(b->slots.each, 1);
    CHECK_INT(a->slots.n, 2); // the layer has two states: ssm_state and conv_state
    for (int i = 0; i < a->slots.n; i++)
        for (int64_t slot = 0; slot < SLOTS; slot++) {
            const struct dt_slot_array *x = &a->slots.arrays[i], *y = &b->slots.arrays[i];
            const float *want = (const float *)(const void *)(a->slots.blocks + x->offset);
            const float *got =
                (const float *)(const void *)(b->slots.blocks + slot * b->slots.block_bytes +
                                              y->offset);
            CHECK_STR(x->name, i ? "layers.0.conv_state" : "layers.0.ssm_state");
            for (int64_t k = 0; k < x->width; k++)
                CHECK_NEAR(got[k], want[slot * x->width + k], 1e-6); // sums have other tiles
        }
    run_close(&whole);
    run_close(&parts);
}

int main(void)
{
    struct dt_dataset *scanned;
    CHECK_OK(dt_dataset_scan("synthetic:random",
                             &(struct dt_scan_rules){.seq_len = LENGTH, .vocab_size = VOCAB},
                             &scanned));
    dataset = scanned;
    RUN(test_memory, test_skipped, test_epoch, test_micro_batches);
    dt_dataset_free(scanned);
    return test_end();
}
