/* A profiler plugin that says with which of its contexts it is called. Its init number i requests events if character i of MASKS is 1,
 * and fails if i is FAILS_AT. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int contexts[8];
static int inits;
static int init(void **context, uint64_t id, int *mask) {
  const char *masks = getenv("MASKS"), *failing = getenv("FAILS_AT");
  int number = inits++;
  *mask = masks[number] == '1' ? 32 : 0; /* 32: ProxyCtrl */
  *context = &contexts[number];
  contexts[number] = number;
  printf("init of %d, ", number);
  return failing && atoi(failing) == number ? 2 : 0;
}
static int start(int *context, void **handle) { printf("event of %d, ", *context); *handle = context; return 0; }
static int nothing(void) { return 0; }
static int finalize(int *context) { printf("finalize of %d, ", *context); return 0; }
#define TABLE {"Profiler", init, start, nothing, nothing, finalize}
const void *ncclProfiler_v5[] = TABLE, *ncclProfiler_v6[] = TABLE, *ncclProfiler_v7[] = TABLE;
