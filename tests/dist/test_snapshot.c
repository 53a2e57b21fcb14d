// The snapshot on a device whose memory the host cannot read, and which copies only when the host
// waits for it. Rank 0's weights and states reach the device of every rank in several pieces and
// come back. Nothing is allocated after the start.
#include "checkpoint/snapshot.h"
#include "late_device.h"
#include "one_layer.h"
#include "test.h"

static struct dt_comm *comm;
static struct dt_backend backend;
static int64_t pinned; // bytes allocated on the host so far

static dt_status count_host(struct dt_device *device, int64_t bytes, void **memory)
{
    pinned += bytes;
    return dt_cpu_device_table.alloc_host(device, bytes, memory);
}

static float value(int array, int64_t i, int rank)
{
    return (float)((i * 5 + array * 7 + rank * 11) % 8191);
}

static void fill(float *x, int64_t n, int array, int rank)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value(array, i, rank);
}

static void check_array(const float *x, int64_t n, int array, int rank, const char *what)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += x[i] != value(array, i, rank);
    CHECK(wrong == 0, "%s: %lld of array %d are wrong", what, (long long)wrong, array);
}

static void check_moves(struct dt_model *model, struct dt_optimizer_states *states, bool unified)
{
    const struct dt_params *params = dt_model_params(model);
    struct dt_snapshot s;
    int64_t n = params->elements;
    bool root = comm->info.rank == 0;
    float *device[] = {dt_model_weights(model), states->list[0].data, states->list[1].data};
    pinned = 0;
    CHECK_OK(dt_snapshot_create(&backend, model, states, root, &s));
    CHECK_INT(pinned, dt_snapshot_bytes(&backend, params, n, 2 * n, root));
    CHECK_INT(pinned, ((root ? 3 * n : 0) + (unified ? 0 : DT_SNAPSHOT_PIECE)) * 4);
    pinned = 0;

    // The ranks' arrays differ.
    for (int i = 0; i < 3; i++)
        fill(device[i], n, i, comm->info.rank);
    CHECK_OK(dt_snapshot_fill(&s));
    CHECK_OK(dt_snapshot_wait(&s));
    for (int i = 0; i < 3 && root; i++) {
        const float *host = i == 0 ? s.host.weights : s.host.states.list[i - 1].data;
        fill(device[i], n, 3, 0); // changes after the copy do not reach the snapshot
        check_array(host, n, i, 0, "filled");
        fill(device[i], n, i, 0);
    }

    CHECK_OK(dt_snapshot_share_weights(&s, comm));
    check_array(device[0], n, 0, 0, "shared weights");
    check_array(device[1], n, 1, comm->info.rank, "a state that was not shared");
    CHECK_OK(dt_snapshot_share(&s, comm));
    for (int i = 0; i < 3; i++)
        check_array(device[i], n, i, 0, "shared");
    CHECK_INT(pinned, 0);
    CHECK_INT(n_late, 0);
    dt_snapshot_destroy(&s);
}

int main(void)
{
    struct dt_device_table table = dt_cpu_device_table;
    struct dt_optimizer_states states = {
        .n = 2, .list = {{.name = "exp_avg"}, {.name = "exp_avg_sq", .squares = true}}};
    struct dt_model *model;
    CHECK_OK(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (!comm)
        return test_end();
    CHECK_OK(dt_backend_open("cpu", 0, 1, &backend));
    table.alloc_host = count_host;
    backend.table = &table;
    model = one_layer(&backend, 64, 80000); // 5 M elements are copied in two pieces
    int64_t bytes = dt_model_params(model)->elements * 4;
    struct dt_span all = {0, dt_model_params(model)->elements};
    states.pieces = (struct dt_pieces){&all, 1, 0, all.end};
    for (int i = 0; i < 2; i++)
        CHECK_OK(dt_alloc(&backend, bytes, &states.list[i].data));
    check_moves(model, &states, true);
    table.unified = false;
    make_late(&table);
    check_moves(model, &states, false);
    for (int i = 0; i < 2; i++)
        dt_free(&backend, states.list[i].data);
    dt_model_destroy(model);
    dt_backend_close(&backend);
    dt_comm_close(comm);
    return test_end();
}
