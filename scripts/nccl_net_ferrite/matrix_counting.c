/* A layer between NCCL and a network plugin that counts calls and changes nothing: a plugin itself, which hands everything on to the one
 * that COUNTED_PLUGIN names. At the end of the process it says what it has seen in one line on standard error.
 */
#define _GNU_SOURCE
#include "nccl/net_v8.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { SENDS = 1 << 14 };
static ncclNet_v8_t below;
ncclNet_v8_t ncclNetPlugin_v8;
static atomic_long sends, truncated, flushes, by_address, by_dmabuf;

/* Sends under way: request, and bytes that were offered. A request of a plugin is some object of its own: its address is its name. */
static struct { void *request; int size; } under_way[SENDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void remember(void *request, int size)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SENDS; i++)
        if (!under_way[i].request) {
            under_way[i].request = request;
            under_way[i].size = size;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* What was offered with `request`, or -1 if it is no send. */
static int forget(void *request)
{
    int size = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SENDS; i++)
        if (under_way[i].request == request) {
            size = under_way[i].size;
            under_way[i].request = NULL;
            break;
        }
    pthread_mutex_unlock(&lock);
    return size;
}

static ncclResult_t isend(void *comm, void *data, int size, int tag, void *memory, void **request)
{
    ncclResult_t result = below.isend(comm, data, size, tag, memory, request);
    if (result == ncclSuccess && *request) {
        sends++;
        remember(*request, size);
    }
    return result;
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
    ncclResult_t result = below.test(request, done, sizes);
    if (result == ncclSuccess && *done) {
        int offered = forget(request);
        truncated += offered >= 0 && sizes && sizes[0] < offered;
    }
    return result;
}

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **memory, void **request)
{
    ncclResult_t result = below.iflush(comm, n, data, sizes, memory, request);
    flushes += result == ncclSuccess && *request;
    return result;
}

static ncclResult_t regMr(void *comm, void *data, size_t size, int type, void **memory)
{
    by_address += type == NCCL_PTR_CUDA;
    return below.regMr(comm, data, size, type, memory);
}

static ncclResult_t regMrDmaBuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **memory)
{
    by_dmabuf++;
    return below.regMrDmaBuf(comm, data, size, type, offset, fd, memory);
}

static void tell(void)
{
    fprintf(stderr, "counted: %ld sends, %ld truncated, %ld flushes, GPU memory %ld by address, %ld by dma-buf\n",
            (long)sends, (long)truncated, (long)flushes, (long)by_address, (long)by_dmabuf);
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("COUNTED_PLUGIN");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const ncclNet_v8_t *found = library ? dlsym(library, "ncclNetPlugin_v8") : NULL;
    if (!found) {
        /* Without a name there is no plugin for NCCL. */
        fprintf(stderr, "COUNTED_PLUGIN=%s: %s\n", path ? path : "", dlerror());
        return;
    }
    below = ncclNetPlugin_v8 = *found;
    ncclNetPlugin_v8.isend = isend;
    ncclNetPlugin_v8.test = test;
    ncclNetPlugin_v8.iflush = iflush;
    ncclNetPlugin_v8.regMr = regMr;
    ncclNetPlugin_v8.regMrDmaBuf = regMrDmaBuf;
    atexit(tell);
}
