// Tests the input of a model on a device that copies only when the host waits for a copy. A step
// must still read what the loader read, although the loader has a single host batch and a batch
// must be used up before the next one is requested.
#include "train/input.h"

#include "late_device.h"
#include "op_fixture.h"

enum { STEPS = 6, SEQUENCES = 6, LENGTH = 5, MICRO = 2 };

static struct dt_loader *open_loader(const struct dt_dataset *dataset, bool sequential)
{
    struct dt_loader_config config = {
        .dataset = dataset,
        .rules = {.seed = 3, .vocab_size = 1000, .reset_token = -1},
        .batch = SEQUENCES,
        .block = 4,
        .size = 1,
        .prefetch = 1,
        .sequential = sequential,
    };
    struct dt_loader *loader = NULL;
    int64_t last = sequential ? dataset->windows / SEQUENCES : 0;
    CHECK_OK(dt_loader_open(&config, last, &loader));
    return loader;
}

// Queues several steps without waiting for any of them.
static void test_late_copies(struct dt_input *input, const struct dt_dataset *dataset)
{
    static int32_t ids[STEPS][SEQUENCES * LENGTH], labels[STEPS][SEQUENCES * LENGTH];
    const int64_t bytes = MICRO * LENGTH * (int64_t)sizeof **ids;
    struct dt_loader *loader = open_loader(dataset, false);
    for (int step = 0; step < STEPS; step++) {
        int64_t n;
        CHECK_OK(dt_input_next(input, loader, NULL, &n, NULL));
        CHECK_INT(n, SEQUENCES / MICRO);
        for (int64_t i = 0; i < n; i++) {
            struct dt_model_input micro;
            CHECK_OK(dt_input_micro_batch(input, NULL, &micro));
            CHECK_INT(micro.sequences, MICRO);
            CHECK_INT(micro.length, LENGTH);
            CHECK(micro.arrays[2] == NULL, "an optional array that the data lacks");
            dt_to_host(input->backend, ids[step] + i * MICRO * LENGTH, micro.arrays[1], bytes,
                       NULL);
            dt_to_host(input->backend, labels[step] + i * MICRO * LENGTH, micro.arrays[0], bytes,
                       NULL);
        }
    }
    dt_input_settle(input);
    dt_loader_close(loader);
    loader = open_loader(dataset, false);
    for (int step = 0; step < STEPS; step++) {
        const struct dt_batch *batch;
        CHECK_OK(dt_loader_next(loader, &batch, NULL));
        CHECK(memcmp(ids[step], dt_batch_find(batch, "input_ids")->data, sizeof *ids) == 0,
              "step %d has other ids", step);
        CHECK(memcmp(labels[step], dt_batch_find(batch, "labels")->data, sizeof *labels) == 0,
              "step %d has other labels", step);
    }
    dt_loader_close(loader);
}

static void test_order_of_calls(struct dt_input *input, const struct dt_dataset *dataset)
{
    struct dt_loader *loader = open_loader(dataset, true); // stopped at its last batch
    struct dt_model_input micro;
    int64_t n;
    CHECK_FAILS(dt_input_micro_batch(input, NULL, &micro), DT_MACHINE, "no further");
    CHECK_OK(dt_input_next(input, loader, NULL, &n, NULL));
    for (int64_t i = 0; i < n; i++) {
        CHECK_FAILS(dt_input_next(input, loader, NULL, &(int64_t){0}, NULL), DT_MACHINE,
                    "not used");
        CHECK_OK(dt_input_micro_batch(input, NULL, &micro));
    }
    CHECK_FAILS(dt_input_micro_batch(input, NULL, &micro), DT_MACHINE, "no further");
    CHECK_OK(dt_input_next(input, loader, NULL, &n, NULL));
    CHECK_INT(n, 0);
    dt_input_settle(input);
    dt_loader_close(loader);
}

int main(void)
{
    struct dt_backend cpu = open_cpu(1), late = cpu;
    struct dt_device_table table = *cpu.table;
    make_late(&table);
    late.table = &table;
    struct dt_array_list arrays = {0}; // not in the loader's order
    dt_array_list_add(&arrays, "labels", DT_I32, 1, false);
    dt_array_list_add(&arrays, "input_ids", DT_I32, 1, false);
    dt_array_list_add(&arrays, "reset", DT_U8, 1, true);
    struct dt_input_config config = {.sequences = SEQUENCES, .length = LENGTH, .micro = MICRO};
    struct dt_dataset *dataset;
    struct dt_input input;
    CHECK_OK(
        dt_dataset_scan("synthetic:random", &(struct dt_scan_rules){.seq_len = LENGTH}, &dataset));
    CHECK_OK(dt_input_create(&late, &arrays, &config, &input));
    test_late_copies(&input, dataset);
    test_order_of_calls(&input, dataset);
    dt_input_destroy(&input);
    CHECK_INT(dt_memory_in_use(&cpu), 0);
    dt_dataset_free(dataset);
    cpu.table->close(cpu.device);
    return test_end();
}
