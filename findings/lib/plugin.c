/* A network plugin of versions 11 and 12 that does as little as NCCL needs to choose it. Its init fails at call number FAILS_AT. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int inits;
static int init(void **context, uint64_t id, void *config, void *log, void *profiler) {
  const char *failing = getenv("FAILS_AT");
  *context = &inits;
  return failing && atoi(failing) == ++inits ? 2 : 0;
}
static int devices(int *count) { *count = 1; return 0; }
static int properties(int device, void *out) {
  memset(out, 0, 104); /* all but the last fields */
  *(const char **)out = "card";
  return 0;
}
static int nothing(void) { return 0; }
/* Versions 11 and 12 agree in the functions that are called here; finalize is the 21st. */
#define TABLE {"Plugin", init, devices, properties, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, \
  nothing, nothing, nothing, 0, 0, 0, nothing, nothing}
const void *ncclNetPlugin_v11[32] = TABLE;
const void *ncclNetPlugin_v12[32] = TABLE;
