// Replicas that drifted: one changed bit of one array of one rank is found, and the rank named.
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

// *x is of rank `rank`; where it is flipped, every rank has the same error.
static void check_flip(struct dt_replicas *r, float *x, int rank, const char *message)
{
    bool mine = comm->info.rank == rank;
    CHECK_OK(dt_replicas_compare(r, comm, 7));
    if (mine)
        flip(x);
    CHECK_INT(dt_replicas_compare(r, comm, 7), DT_MACHINE);
    CHECK_SAYS(message);
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
    char named[256];
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
    CHECK_OK(dt_replicas_create(&backend, model, &states, (int)ranks, &r));
    // Of two ranks either may be wrong, of three the majority is right.
    for (int rank = 0; rank < ranks; rank++) {
        int blamed = ranks == 2 ? 1 : rank;
        snprintf(named, sizeof named, "rank %d on %s: the replicas drifted apart: weights after",
                 blamed, comm->info.host);
        check_flip(&r, weights + n - 1, rank,
                   blamed == 0 ? "the replicas drifted apart: weights" : named);
        check_flip(&r, states.list[0].data, rank, "exp_avg after step 7");
        check_flip(&r, weights, rank, ranks == 2 ? "either may be the wrong one" : "of most ranks");
    }
    dt_replicas_destroy(&r);
    // States that are spread over ranks differ: only weights are compared.
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
