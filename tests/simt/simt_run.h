// Sets the order in which the host execution model runs the threads of the next launches. Each
// order has found bugs that the others missed. Asynchronous copies arrive immediately in ascending
// and random order, and as late as allowed in the other two.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum simt_order {
    SIMT_ASCENDING,
    SIMT_DESCENDING,
    SIMT_RANDOM,     // redrawn after all threads have had a turn
    SIMT_WARP_AHEAD, // a random warp runs to its barrier before another begins
    SIMT_ORDERS
};

void simt_set_order(enum simt_order order, uint32_t seed);
const char *simt_order_name(enum simt_order order); // "ascending", "descending", "random", "warp"
// Sets the most bytes of shared memory that a block may be allowed, where every GPU gives 48 KB;
// 227 KB at first.
void simt_set_shared_most(int64_t bytes);

#ifdef __cplusplus
}
#endif
