/* A program that wants memory windows, which these devices have not: what the headers' own calls answer. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

static void allocate(struct ibv_pd *pd, enum ibv_mw_type type)
{
    errno = 0;
    struct ibv_mw *window = ibv_alloc_mw(pd, type);
    printf("type %d: %s\n", type, window ? "there is one" : strerror(errno));
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_device_attr attr;
    if (!pd || ibv_query_device(context, &attr))
        return 1;
    unsigned int flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    printf("max_mw %d, flags %u\n", attr.max_mw, attr.device_cap_flags & flags);
    allocate(pd, IBV_MW_TYPE_1);
    allocate(pd, IBV_MW_TYPE_2);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(devices);
    return 0;
}
