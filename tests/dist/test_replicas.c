// Finds replicas that differ: one changed bit in one array of one rank is reported together with
// the rank.
#include "one_layer.h"
#include "test.h"
#include "train/replicas.h"

#include <string.h>

static struct dt_comm *comm;
static struct dt_backend backend;

static void flip(float *x)
{
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    bits ^= 1;
    memcpy(x, &bits, sizeof bits);
}

// Flips a bit of *x on `rank`. Every rank must then report the same error, which names the rank
// that differs: of two ranks it may name either, of three the majority is right.
static void check_flip(struct dt_replicas *r, const char *name, float *x, int rank)
{
    bool mine = comm->info.rank == rank;
    int size = comm->info.size, blamed = size == 2 ? 1 : rank;
    char place[128] = "", named[256];
    if (blamed > 0)
        snprintf(place, sizeof place, "rank %d on %s: ", blamed, comm->info.host);
    snprintf(named, sizeof named, "%sthe replicas drifted apart: %s after step 7 ", place, name);
    CHECK_OK(dt_replicas_compare(r, comm, 7));
    if (mine)
        flip(x);
    CHECK_INT(dt_replicas_compare(r, comm, 7), DT_MACHINE);
    const char *message = dt_error_current()->message;
    CHECK(strncmp(message, named, strlen(named)) == 0, "it does not begin with \"%s\": %s", named,
          message);
    CHECK_SAYS(size == 2 ? "either may be the wrong one" : "of most ranks");
    dt_error_clear();
    if (mine)
        flip(x);
    CHECK_OK(dt_replicas_compare(r, comm, 8));
}

int main(void)
{
    struct dt_optimizer_states states = {.n = 1, .list = {{.name = "exp_avg"}}};
    struct dt_replicas r;
    struct dt_model *model;
    CHECK_OK(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (!comm)
        return test_end();
    CHECK_OK(dt_backend_open("cpu", 0, 1, &backend));
    model = one_layer(&backend, 16, 5000);
    int64_t n = dt_model_params(model)->elements, ranks = comm->info.size;
    float *weights = dt_model_weights(model);
    CHECK_OK(dt_alloc(&backend, n * 4, &states.list[0].data));
    memset(states.list[0].data, 0, (size_t)n * 4);
    memset(weights, 0, (size_t)n * 4);
    states.pieces.elements = n;
    struct dt_memory_plan plan = {0};
    dt_replicas_plan(&backend, dt_model_params(model), &plan);
    int64_t before = dt_memory_in_use(&backend);
    CHECK_OK(dt_replicas_create(&backend, model, &states, (int)ranks, &r));
    CHECK_INT(dt_memory_plan_bytes(&plan, false), dt_memory_in_use(&backend) - before);
    for (int rank = 0; rank < ranks; rank++) {
        check_flip(&r, "weights", weights + n - 1, rank);
        check_flip(&r, "weights", weights, rank);
        check_flip(&r, "exp_avg", states.list[0].data, rank);
    }
    dt_replicas_destroy(&r);
    // States that are sharded differ between ranks, so only weights are compared.
    states.pieces.elements = n / 2;
    CHECK_OK(dt_replicas_create(&backend, model, &states, (int)ranks, &r));
    states.list[0].data[0] = (float)comm->info.rank;
    CHECK_OK(dt_replicas_compare(&r, comm, 9));
    dt_replicas_destroy(&r);
    dt_free(&backend, states.list[0].data);
    dt_model_destroy(model);
    dt_backend_close(&backend);
    dt_comm_close(comm);
    return test_end();
}
