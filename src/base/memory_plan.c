// Adds up the rows of a memory plan by name.
#include "base/memory_plan.h"

#include <string.h>

void dt_memory_plan_add(struct dt_memory_plan *plan, const char *what, int64_t bytes, bool host)
{
    int i = 0;
    while (i < plan->n && (strcmp(plan->rows[i].what, what) != 0 || plan->rows[i].host != host))
        i++;
    if (bytes == 0)
        return;
    if (i == DT_MEMORY_ROWS) { // the sum stays correct, even if a name is lost
        plan->rows[--i].what = "others";
        plan->rows[i].host &= host;
    } else if (i == plan->n) {
        plan->rows[plan->n++] = (struct dt_memory_row){.what = what, .host = host};
    }
    plan->rows[i].bytes += bytes;
}

int64_t dt_memory_plan_bytes(const struct dt_memory_plan *plan, bool with_host)
{
    int64_t bytes = 0;
    for (int i = 0; i < plan->n; i++)
        if (with_host || !plan->rows[i].host)
            bytes += plan->rows[i].bytes;
    return bytes;
}
