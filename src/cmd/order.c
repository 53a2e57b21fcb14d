// `dtrain order`: the data order made auditable, a line "step slot file offset" for each trained
// window.
#include "data/order.h"
#include "cmd/cmd.h"
#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "dtrain order CONFIG [key=value …] --steps A:B";

// Takes --steps A:B (steps count from 1, both inclusive) out of the words.
static dt_status take_steps(int *argc, char **argv, int64_t *first, int64_t *last)
{
    for (int i = 1; i < *argc; i++) {
        char *value = NULL, extra;
        int used = 0;
        if (strncmp(argv[i], "--steps=", 8) == 0)
            value = argv[i] + 8, used = 1;
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < *argc)
            value = argv[i + 1], used = 2;
        else
            continue;
        long long a, b;
        if (sscanf(value, "%lld:%lld%c", &a, &b, &extra) != 2 || a < 1 || b < a)
            return DT_FAIL(DT_USER, "write --steps 1:10: steps count from 1, both ends are printed",
                           "--steps %s is no range of steps", value);
        *first = a;
        *last = b;
        memmove(argv + i, argv + i + used, (size_t)(*argc - i - used) * sizeof *argv);
        *argc -= used;
        return DT_OK;
    }
    return DT_FAIL(DT_USER, usage, "--steps A:B is missing");
}

// The offset is in the reader kind's units: tokens, or rows of pairs.
static dt_status print_order(const struct dt_job *job, int64_t first, int64_t last)
{
    const struct dt_settings *s = &job->settings;
    struct dt_order_config config = {.dataset = job->train,
                                     .seed = (uint64_t)s->run.seed,
                                     .batch = s->data.batch,
                                     .block = s->data.block,
                                     .shuffle = s->data.shuffle};
    struct dt_order *order;
    dt_status status = DT_OK;
    DT_TRY(dt_order_create(&config, &order));
    for (int64_t step = first; step <= last && status == DT_OK; step++)
        for (int64_t slot = 0; slot < s->data.batch && status == DT_OK; slot++) {
            struct dt_position at;
            status = dt_order_at(order, step - 1, slot, &at);
            if (status == DT_OK)
                printf("%lld %lld %s %lld\n", (long long)step, (long long)slot,
                       job->train->shards[at.shard].path,
                       (long long)(at.window * job->train->shards[at.shard].stride));
        }
    dt_order_free(order);
    return status;
}

dt_status dt_cmd_order(struct dt_comm *comm, int argc, char **argv)
{
    int64_t first = 0, last = 0;
    struct dt_job job;
    DT_TRY(take_steps(&argc, argv, &first, &last));
    if (argc < 2)
        return DT_FAIL(DT_USER, usage, "no configuration file given");
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    dt_status status = dt_job_open(comm, DT_PURPOSE_ORDER, argv[1], argv + 2, argc - 2, &job);
    if (status == DT_OK && comm->info.rank == 0)
        status = print_order(&job, first, last);
    if (fflush(stdout) != 0 && status == DT_OK)
        status = DT_FAIL(DT_MACHINE, NULL, "cannot write the order to standard output");
    dt_job_close(&job);
    return status;
}
