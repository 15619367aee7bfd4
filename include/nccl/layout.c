/* The layout that NCCL's own releases have, for the C compiler that builds with the feature `bindgen`. */
#include "net_v8.h"

#include <stddef.h>

_Static_assert(sizeof(ncclNetProperties_v8_t) == 64, "ncclNetProperties_v8_t has 64 bytes");
_Static_assert(offsetof(ncclNetProperties_v8_t, latency) == 40, "latency lies at 40");
_Static_assert(sizeof(ncclNet_v8_t) == 19 * sizeof(void *), "ncclNet_v8_t has a name and 18 calls");
_Static_assert(offsetof(ncclNet_v8_t, test) == 13 * sizeof(void *), "test is call 13");
