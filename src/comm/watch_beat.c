// Heartbeats: opens the connections between ranks, and sends and receives beats.
#include "comm/watch.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

static const double nap_s = 200e-6;

dt_status dt_mpi_status(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return DT_OK;
    MPI_Error_string(code, text, &length);
    return DT_FAIL(DT_MACHINE, NULL, "%.*s failed: %s", (int)strcspn(call, "("), call, text);
}

static int receive(struct dt_watch *watch, struct dt_link *link)
{
    return MPI_Irecv(link->in, watch->size * (int)sizeof *link->in, MPI_BYTE, link->from, 0,
                     watch->comm, &link->receiving);
}

static dt_status connect_peers(struct dt_watch *watch)
{
    size_t size = (size_t)watch->size;
    for (int distance = 1; distance < watch->size; distance *= 2)
        watch->n_links++;
    DT_TRY(DT_NEW(&watch->buffers, size * 2 * watch->n_links + 1, "heartbeats"));
    for (int i = 0; i < watch->n_links; i++) {
        struct dt_link *link = &watch->links[i];
        int distance = 1 << i;
        link->to = (watch->rank + distance) % watch->size;
        link->from = (watch->rank - distance + watch->size) % watch->size;
        link->out = watch->buffers + size * 2 * (size_t)i;
        link->in = link->out + size;
        link->sending = MPI_REQUEST_NULL;
        DT_TRY(dt_mpi_status(receive(watch, link), "MPI_Irecv"));
    }
    return DT_OK;
}

dt_status dt_watch_open(struct dt_watch *watch, const char *host)
{
    DT_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &watch->comm));
    DT_MPI(MPI_Comm_rank(watch->comm, &watch->rank));
    DT_MPI(MPI_Comm_size(watch->comm, &watch->size));
    DT_TRY(DT_NEW(&watch->peers, watch->size, "%d ranks", watch->size));
    struct dt_peer *mine = &watch->peers[watch->rank];
    for (int r = 0; r < watch->size; r++)
        watch->peers[r].beat =
            (struct dt_beat){.rank = r, .step = -1, .peer = -1, .lost = -1, .phase = "start-up"};
    snprintf(mine->host, sizeof mine->host, "%s", host);
    mine->process = dt_process_self();
    DT_MPI(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, watch->peers, sizeof *mine, MPI_BYTE,
                         watch->comm));
    DT_TRY(connect_peers(watch));
    watch->period = watch->size <= 64 ? 0.1 : 0.25;
    watch->lost = -1;
    watch->last_time = dt_seconds();
    watch->clock = 1; // 0 means never
    for (int r = 0; r < watch->size; r++)
        watch->peers[r].heard = watch->clock;
    return DT_OK;
}

double dt_watch_silence(const struct dt_watch *watch)
{
    return 5 + 1.25 * watch->n_links * watch->period; // news takes one beat per link
}

static void learn(struct dt_watch *watch, const struct dt_beat *beats, int n)
{
    for (int i = 0; i < n; i++) {
        struct dt_peer *peer = &watch->peers[beats[i].rank];
        if (beats[i].rank == watch->rank || beats[i].number <= peer->beat.number)
            continue;
        if (beats[i].state == DT_PEER_SPOKE && !watch->spoken) {
            watch->spoken = true;
            dt_log_quiet(true); // nothing may follow the report of the end
        }
        if (beats[i].reports > peer->beat.reports)
            peer->busy_at = watch->clock;
        peer->beat = beats[i];
        peer->heard = watch->clock;
    }
}

// Reads arrived messages; an empty message closes its link. A link with an error is no longer used;
// the silence that follows is noticed.
void dt_watch_listen(struct dt_watch *watch)
{
    for (int i = 0; i < watch->n_links; i++) {
        struct dt_link *link = &watch->links[i];
        int arrived = 0, bytes;
        MPI_Status status;
        while (link->receiving != MPI_REQUEST_NULL &&
               MPI_Test(&link->receiving, &arrived, &status) == MPI_SUCCESS && arrived) {
            MPI_Get_count(&status, MPI_BYTE, &bytes);
            link->ended = bytes == 0;
            if (link->ended)
                break;
            learn(watch, link->in, bytes / (int)sizeof *link->in);
            receive(watch, link);
        }
    }
}

static bool link_is_free(struct dt_link *link)
{
    int sent = 0;
    return MPI_Test(&link->sending, &sent, MPI_STATUS_IGNORE) == MPI_SUCCESS && sent;
}

void dt_watch_send(struct dt_watch *watch, enum dt_peer_state state)
{
    watch->peers[watch->rank].beat.number++;
    watch->peers[watch->rank].beat.state = (int32_t)state;
    for (int i = 0; i < watch->n_links; i++) {
        struct dt_link *link = &watch->links[i];
        if (!link_is_free(link)) // the peer does not receive; the next beat will be newer
            continue;
        for (int r = 0; r < watch->size; r++)
            link->out[r] = watch->peers[r].beat;
        MPI_Isend(link->out, watch->size * (int)sizeof *link->out, MPI_BYTE, link->to, 0,
                  watch->comm, &link->sending);
    }
}

void dt_watch_flush(struct dt_watch *watch)
{
    double end = dt_seconds() + 0.2;
    for (int i = 0; i < watch->n_links; i++)
        while (!link_is_free(&watch->links[i]) && dt_seconds() < end)
            dt_sleep(nap_s);
}

// Each link ends with an empty message, so that all messages are received before MPI_Finalize.
void dt_watch_close(struct dt_watch *watch)
{
    double end = dt_seconds() + dt_watch_silence(watch);
    for (int i = 0; i < watch->n_links; i++) {
        struct dt_link *link = &watch->links[i];
        for (; !link_is_free(link) && dt_seconds() < end; dt_sleep(nap_s))
            dt_watch_listen(watch);
        MPI_Isend(link->out, 0, MPI_BYTE, link->to, 0, watch->comm, &link->sending);
    }
    for (int i = 0; i < watch->n_links; i++) {
        struct dt_link *link = &watch->links[i];
        for (; !(link->ended && link_is_free(link)) && dt_seconds() < end; dt_sleep(nap_s))
            dt_watch_listen(watch);
        if (!link->ended) // keep the buffers, to which MPI may still write
            return;
    }
    free(watch->buffers);
    free(watch->peers);
    MPI_Comm_free(&watch->comm);
}
