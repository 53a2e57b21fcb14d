// The environment of the simulated device.
#include "cudart.h"

#include <stdio.h>
#include <stdlib.h>

namespace simt
{
static long long number_of(const char *variable, long long otherwise)
{
    const char *text = getenv(variable);
    if (!text)
        return otherwise;
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < 0) {
        fprintf(stderr, "simt: %s is \"%s\", not a number\n", variable, text);
        exit(2);
    }
    return value;
}

static enum simt_order order_of(const char *name)
{
    for (int i = 0; i < SIMT_ORDERS; i++)
        if (strcmp(name, simt_order_name((enum simt_order)i)) == 0)
            return (enum simt_order)i;
    fprintf(stderr, "simt: SIMT_ORDER is \"%s\", not ascending, descending, random or warp\n",
            name);
    exit(2);
}

static settings read(void)
{
    const char *order = getenv("SIMT_ORDER"), *uuid = getenv("SIMT_UUID");
    const char *name = getenv("SIMT_NAME"), *code = getenv("SIMT_CODE");
    const char *copies = getenv("SIMT_COPIES");
    simt_set_order(order ? order_of(order) : SIMT_ASCENDING, (uint32_t)number_of("SIMT_SEED", 1));
    return {(int)number_of("SIMT_DEVICES", 1),    (int)number_of("SIMT_DRIVER", CUDART_VERSION),
            (int)number_of("SIMT_SM", 90),        (size_t)number_of("SIMT_MEMORY", 1 << 30),
            uuid && strcmp(uuid, "same") == 0,    name ? name : "Simulated GPU",
            !(code && strcmp(code, "none") == 0), copies && strcmp(copies, "late") == 0};
}

const settings &environment(void)
{
    static const settings found = read();
    return found;
}
} // namespace simt
