// read_windows FILE INPUTS TARGETS SEQ_LEN STRIDE MASK [EPISODES TIME_AXIS]: writes what the loader
// yields in one pass to standard output, window by window: frames, ids, targets (32 bits each),
// mask and reset (8 bits).
#include "data/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dt_status copy_pass(const struct dt_dataset *dataset)
{
    struct dt_loader_config config = {.dataset = dataset,
                                      .rules = {.carry = true},
                                      .batch = 1,
                                      .block = 1,
                                      .size = 1,
                                      .prefetch = 2,
                                      .sequential = true};
    struct dt_loader *loader;
    DT_TRY(dt_loader_open(&config, 0, &loader));
    const struct dt_batch *batch;
    dt_status status;
    while ((status = dt_loader_next(loader, &batch, NULL)) == DT_OK && batch)
        for (int i = 0; i < batch->n_arrays; i++)
            fwrite(batch->arrays[i].data, 1,
                   (size_t)dt_array_bytes(&batch->arrays[i].spec, batch->length), stdout);
    dt_loader_close(loader);
    return status;
}

int main(int argc, char **argv)
{
    struct dt_scan_rules rules = {0};
    struct dt_dataset *dataset = NULL;
    if (argc != 7 && argc != 9)
        return 2;
    snprintf(rules.inputs, sizeof rules.inputs, "%s", argv[2]);
    snprintf(rules.targets, sizeof rules.targets, "%s", argv[3]);
    rules.seq_len = atoll(argv[4]);
    rules.stride = atoll(argv[5]);
    snprintf(rules.mask, sizeof rules.mask, "%s", argv[6]);
    snprintf(rules.episodes, sizeof rules.episodes, "%s", argc > 7 ? argv[7] : "");
    rules.time_axis = argc > 7 ? atoll(argv[8]) : 0;
    dt_status status = dt_dataset_scan(argv[1], &rules, &dataset);
    if (status == DT_OK)
        status = copy_pass(dataset);
    if (status != DT_OK)
        fprintf(stderr, "%s\n", dt_error_current()->message);
    dt_dataset_free(dataset);
    return status == DT_OK && fflush(stdout) == 0 ? 0 : 2;
}
