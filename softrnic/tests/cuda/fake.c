/* A CUDA driver without a GPU, for tests: what softrnic needs of it, and no call that waits.
 *
 * "Device memory" is a mapping without access, so that a processor that touches it by mistake faults; a second
 * mapping of the same pages is what copies and tests use. Copies are done by a thread of their own, some time later:
 * FAKE_CUDA_SLOW_US says how much. Memory can be shared with another process, by a handle that names a descriptor of this process,
 * or, if fake_allocate_exportable has made it, by a descriptor. While a test holds the driver, no call in this process returns.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NOT_INITIALISED = 3, NOT_READY = 600, FAILED = 719, RANGES = 64, QUEUE = 4096 };

struct range { uintptr_t at; char *shadow; size_t bytes; int fd; int is_exportable; uint64_t id; };
static struct range ranges[RANGES];
static atomic_int range_count;

/* What the copying thread has to do: copy `bytes`, or mark an event. */
struct work { char *to; const char *from; size_t bytes; atomic_int *event; };
static struct work queue[QUEUE];
static atomic_uint posted, done;
static pthread_mutex_t posting = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t started = PTHREAD_ONCE_INIT;
static atomic_int failing, copies, contexts, allocations, uninitialised, without_dmabuf;
static atomic_int is_held;
static uint64_t last_id;
static __thread int depth;

static void wait_for_driver(void)
{
    while (is_held)
        usleep(50);
}

static struct range *find(uintptr_t at)
{
    for (int i = 0; i < range_count; i++)
        if (ranges[i].at && at >= ranges[i].at && at < ranges[i].at + ranges[i].bytes)
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

/* The pages of `fd` as device memory. */
static uintptr_t adopt(int fd, size_t bytes)
{
    int index = 0;
    while (index < range_count && ranges[index].at)
        index++;
    if (fd < 0 || index == RANGES)
        return 0;
    struct range *range = &ranges[index];
    range->shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    range->bytes = bytes;
    range->fd = fd;
    range->is_exportable = 0;
    range->id = ++last_id;
    range->at = (uintptr_t)mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    if (index == range_count)
        range_count++;
    return range->at;
}

static int drop(uintptr_t at)
{
    struct range *range = find(at);
    if (!range || range->at != at)
        return INVALID;
    munmap(range->shadow, range->bytes);
    munmap((void *)at, range->bytes);
    close(range->fd);
    range->at = range->bytes = 0;
    return OK;
}

/* For tests. */
uintptr_t fake_allocate(size_t bytes)
{
    int fd = memfd_create("device", 0);
    return fd < 0 || ftruncate(fd, bytes) ? 0 : adopt(fd, bytes);
}
/* As cuMemCreate makes it. */
uintptr_t fake_allocate_exportable(size_t bytes)
{
    uintptr_t at = fake_allocate(bytes);
    if (at)
        find(at)->is_exportable = 1;
    return at;
}
/* Two allocations of `bytes` each, one behind the other. */
uintptr_t fake_allocate_two(size_t bytes)
{
    char *room = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 2; i++) {
        struct range *range = find(fake_allocate(bytes));
        munmap((void *)range->at, bytes);
        range->at = (uintptr_t)mmap(room + i * bytes, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, range->fd, 0);
    }
    return (uintptr_t)room;
}
/* Frees an allocation, and makes one of the same size at the same address. */
int fake_replace(uintptr_t at)
{
    struct range *range = find(at);
    size_t bytes = range->bytes;
    drop(at);
    uintptr_t now = fake_allocate(bytes);
    range = find(now);
    munmap((void *)now, bytes);
    range->at = (uintptr_t)mmap((void *)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, range->fd, 0);
    return range->at == at ? 0 : INVALID;
}
void fake_hold(int is_now_held) { is_held = is_now_held; }
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
    if (attribute == 7) {
        /* Whether every driver numbers what cuMemCreate makes is not known: this one does not. */
        *(uint64_t *)out = find(at)->id;
        return find(at)->is_exportable ? INVALID : OK;
    }
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
int cuCtxPushCurrent_v2(void *context) { wait_for_driver(); depth++; return context == &contexts ? OK : INVALID; }
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
int cuEventQuery(void *event) { wait_for_driver(); return *(atomic_int *)event; }
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
/* Sharing. */
int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuMemGetAddressRange_v2(uintptr_t *base, size_t *bytes, uintptr_t at)
{
    struct range *range = find(at);
    if (!range || !depth)
        return INVALID;
    *base = range->at;
    *bytes = range->bytes;
    return OK;
}
struct handle { char path[64]; };
int cuIpcGetMemHandle(struct handle *handle, uintptr_t at)
{
    struct range *range = find(at);
    if (!range || range->is_exportable || !depth)
        return INVALID;
    snprintf(handle->path, sizeof handle->path, "/proc/%d/fd/%d", getpid(), range->fd);
    return OK;
}
static int open_pages(const char *path, uintptr_t *at, size_t bytes)
{
    int fd = open(path, O_RDWR);
    *at = fd < 0 ? 0 : adopt(fd, bytes ? bytes : (size_t)lseek(fd, 0, SEEK_END));
    return *at ? OK : INVALID;
}
int cuIpcOpenMemHandle_v2(uintptr_t *at, struct handle handle, unsigned flags)
{
    return flags == 1 && depth ? open_pages(handle.path, at, 0) : INVALID;
}
int cuIpcCloseMemHandle(uintptr_t at) { return drop(at); }
/* An allocation is its descriptor, and one more than that: 0 is none. */
int cuMemRetainAllocationHandle(uint64_t *allocation, void *at)
{
    struct range *range = find((uintptr_t)at);
    if (!range || !range->is_exportable)
        return INVALID;
    *allocation = dup(range->fd) + 1;
    return OK;
}
int cuMemRelease(uint64_t allocation) { return close(allocation - 1) ? INVALID : OK; }
int cuMemExportToShareableHandle(int *fd, uint64_t allocation, int type, unsigned long long flags)
{
    *fd = dup(allocation - 1);
    return type == 1 && !flags && *fd >= 0 ? OK : INVALID;
}
int cuMemImportFromShareableHandle(uint64_t *allocation, void *fd, int type)
{
    *allocation = dup((int)(uintptr_t)fd) + 1;
    return type == 1 && *allocation ? OK : INVALID;
}
/* What is reserved becomes a range when it is mapped, at the same address. */
int cuMemAddressReserve(uintptr_t *at, size_t bytes, size_t align, uintptr_t wanted, unsigned long long flags)
{
    *at = (uintptr_t)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return align || wanted || flags || (void *)*at == MAP_FAILED ? INVALID : OK;
}
int cuMemAddressFree(uintptr_t at, size_t bytes) { (void)at; return bytes ? OK : INVALID; }
int cuMemMap(uintptr_t at, size_t bytes, size_t offset, uint64_t allocation, unsigned long long flags)
{
    uintptr_t now = adopt(dup(allocation - 1), bytes);
    if (!now || offset || flags)
        return INVALID;
    struct range *range = find(now);
    munmap((void *)now, bytes);
    range->at = (uintptr_t)mmap((void *)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, range->fd, 0);
    return OK;
}
int cuMemUnmap(uintptr_t at, size_t bytes) { (void)bytes; return drop(at); }
struct access { int location[2], flags; };
int cuMemSetAccess(uintptr_t at, size_t bytes, const struct access *access, size_t count)
{
    return find(at) && bytes && count == 1 && access->location[0] == 1 && access->flags == 3 ? OK : INVALID;
}
