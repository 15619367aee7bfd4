/* A CUDA driver without a GPU, for tests: what softrnic needs of it, and no call that waits.
 *
 * "Device memory" is a mapping without access, so that a processor that touches it by mistake faults; a second
 * mapping of the same pages is what copies and tests use. Copies are done by a thread of their own, some time later:
 * FAKE_CUDA_SLOW_US says how much.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NOT_INITIALISED = 3, NOT_READY = 600, FAILED = 719, RANGES = 64, QUEUE = 4096 };

struct range { uintptr_t at; char *shadow; size_t bytes; };
static struct range ranges[RANGES];
static atomic_int range_count;

/* What the copying thread has to do: copy `bytes`, or mark an event. */
struct work { char *to; const char *from; size_t bytes; atomic_int *event; };
static struct work queue[QUEUE];
static atomic_uint posted, done;
static pthread_mutex_t posting = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t started = PTHREAD_ONCE_INIT;
static atomic_int failing, copies, contexts, allocations, uninitialised, without_dmabuf;
static __thread int depth;

static struct range *find(uintptr_t at)
{
    for (int i = 0; i < range_count; i++)
        if (at >= ranges[i].at && at < ranges[i].at + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

static char *shadow_of(uintptr_t at)
{
    struct range *range = find(at);
    return range ? range->shadow + (at - range->at) : NULL;
}

static void *work(void *unused)
{
    (void)unused;
    for (;;) {
        unsigned now = done;
        if (now == posted) {
            usleep(20);
            continue;
        }
        struct work *todo = &queue[now % QUEUE];
        if (!todo->event && getenv("FAKE_CUDA_SLOW_US"))
            usleep(atoi(getenv("FAKE_CUDA_SLOW_US")));
        if (todo->event)
            *todo->event = failing ? FAILED : OK;
        else
            memcpy(todo->to, todo->from, todo->bytes);
        done = now + 1;
    }
    return NULL;
}

static void start(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
}

static int post(struct work todo)
{
    if (!depth)
        return INVALID; /* no context */
    pthread_once(&started, start);
    pthread_mutex_lock(&posting);
    queue[posted % QUEUE] = todo;
    posted++;
    pthread_mutex_unlock(&posting);
    return OK;
}

/* For tests. */
uintptr_t fake_allocate(size_t bytes)
{
    int fd = memfd_create("device", 0);
    if (fd < 0 || ftruncate(fd, bytes) || range_count == RANGES)
        return 0;
    struct range *range = &ranges[range_count];
    range->shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    range->at = (uintptr_t)mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    range->bytes = bytes;
    range_count++;
    close(fd);
    return range->at;
}
char *fake_shadow(uintptr_t at) { return shadow_of(at); }
void fake_fail(int is_failing) { failing = is_failing; }
int fake_copies(void) { return copies; }
int fake_allocations(void) { return allocations; }
/* As before cuInit. */
void fake_sleep(int is_asleep) { uninitialised = is_asleep; }
void fake_keep_dmabuf(int is_kept) { without_dmabuf = is_kept; }

/* The driver. */
int cuPointerGetAttribute(void *out, int attribute, uintptr_t at)
{
    if (!find(at))
        return INVALID;
    *(int *)out = attribute == 2 ? 2 : 0;
    return attribute == 2 || attribute == 9 ? OK : INVALID;
}
/* No thread has made a context current by itself; that of the device is active. */
int cuCtxGetCurrent(void **context) { *context = NULL; return uninitialised ? NOT_INITIALISED : OK; }
int cuDeviceGetCount(int *count) { *count = 1; return OK; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active)
{
    *flags = 0;
    *is_active = 1;
    return device ? INVALID : OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = !without_dmabuf;
    return attribute == 124 && !device ? OK : INVALID;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &contexts; return OK; }
int cuCtxPushCurrent_v2(void *context) { depth++; return context == &contexts ? OK : INVALID; }
int cuCtxPopCurrent_v2(void **context) { *context = &contexts; return depth-- > 0 ? OK : INVALID; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return OK; }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    *stream = &queue;
    return flags == 1 && priority == -5 ? OK : INVALID;
}
int cuEventCreate(void **event, unsigned flags)
{
    *event = calloc(1, sizeof(atomic_int));
    return flags == 2 ? OK : INVALID;
}
int cuEventRecord(void *event, void *stream)
{
    (void)stream;
    *(atomic_int *)event = NOT_READY;
    return post((struct work){ .event = event });
}
int cuEventQuery(void *event) { return *(atomic_int *)event; }
int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream)
{
    (void)stream;
    copies++;
    return shadow_of(from) ? post((struct work){ to, shadow_of(from), bytes, NULL }) : INVALID;
}
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    copies++;
    return shadow_of(to) ? post((struct work){ shadow_of(to), from, bytes, NULL }) : INVALID;
}
int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    (void)at;
    return bytes && flags == 1 ? OK : INVALID;
}
int cuMemAlloc_v2(uintptr_t *at, size_t bytes) { allocations++; *at = fake_allocate(bytes); return *at ? OK : INVALID; }
int cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 2 - *mode; return OK; }
int cuGetErrorName(int code, const char **name)
{
    *name = code == FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
