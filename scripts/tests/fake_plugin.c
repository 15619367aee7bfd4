/* A network plugin that moves nothing: for tests of the layer that counts calls. It sends at most 100 bytes of a message. */
#include "nccl/net_v8.h"
#include <stdlib.h>

static ncclResult_t isend(void *comm, void *data, int size, int tag, void *memory, void **request)
{
    (void)comm, (void)data, (void)tag, (void)memory;
    *request = NULL;
    if (size < 0)
        return ncclSuccess; /* try again later */
    *(int *)(*request = malloc(sizeof(int))) = size > 100 ? 100 : size;
    return ncclSuccess;
}
static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **memory, void **request)
{
    (void)comm, (void)data, (void)sizes, (void)memory;
    *(int *)(*request = malloc(sizeof(int))) = n;
    return ncclSuccess;
}
static ncclResult_t test(void *request, int *done, int *sizes)
{
    if (sizes)
        *sizes = *(int *)request;
    *done = 1;
    free(request);
    return ncclSuccess;
}
static ncclResult_t regMr(void *comm, void *data, size_t size, int type, void **memory)
{
    (void)comm, (void)size, (void)type;
    *memory = data;
    return ncclSuccess;
}
static ncclResult_t regMrDmaBuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **memory)
{
    (void)offset, (void)fd;
    return regMr(comm, data, size, type, memory);
}
ncclNet_v8_t ncclNetPlugin_v8 = { .name = "Fake", .regMr = regMr, .regMrDmaBuf = regMrDmaBuf, .isend = isend, .iflush = iflush, .test = test };
