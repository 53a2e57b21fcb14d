// Moves states and their gradients between ranks by exchanges of the communicator.
#include "train/relay.h"

#include "base/list.h"
#include "base/memory.h"

#include <stdlib.h>

static dt_status exchange(struct dt_relay_state *r, const struct dt_collective *exchange)
{
    struct dt_relay_sends *list = &r->sends[r->side];
    if (!exchange->mine)
        return dt_collective(r->comm, exchange);
    DT_TRY(dt_list_grow(&list->requests, list->n, sizeof *list->requests));
    DT_TRY(dt_begin(r->comm, exchange, &list->requests[list->n]));
    list->n++;
    return DT_OK;
}

static dt_status move(void *context, bool sends, bool onward, uint32_t name, void *array,
                      int64_t bytes)
{
    struct dt_relay_state *r = context;
    return exchange(r, &(struct dt_collective){.operation = DT_EXCHANGE,
                                               .dtype = DT_U8,
                                               .peer = onward ? r->next : r->previous,
                                               .count = bytes,
                                               .mine = sends ? array : NULL,
                                               .data = sends ? NULL : array,
                                               .signature = name + r->window});
}

dt_status dt_relay_sum(struct dt_relay_state *r, bool sends, uint32_t name, void *array,
                       int64_t bytes)
{
    return exchange(r, &(struct dt_collective){.operation = DT_EXCHANGE,
                                               .dtype = DT_U8,
                                               .peer = sends ? r->previous : r->next,
                                               .count = bytes,
                                               .mine = sends ? array : NULL,
                                               .data = sends ? NULL : array,
                                               .signature = name + r->window,
                                               .overtakes = true});
}

void dt_relay_create(struct dt_comm *comm, int64_t context, struct dt_relay_state *r)
{
    const int size = (int)context, rank = comm->info.rank, first = rank / size * size;
    *r = (struct dt_relay_state){.comm = comm,
                                 .relay = {move, r},
                                 .next = first + (rank + 1) % size,
                                 .previous = first + (rank + size - 1) % size};
}

void dt_relay_destroy(struct dt_relay_state *r)
{
    for (int side = 0; side < 2; side++)
        free(r->sends[side].requests);
    *r = (struct dt_relay_state){0};
}

dt_status dt_relay_settle(struct dt_relay_state *r, int side)
{
    struct dt_relay_sends *list = &r->sends[side];
    r->side = side;
    while (list->n > 0)
        DT_TRY(dt_wait(r->comm, list->requests[--list->n]));
    return DT_OK;
}
