/*
 * A plugin that does nothing but answer NCCL's calls, within one process: what `ferrite solo` takes with it is the loop of ferrite itself.
 * With ANSWERING_PLUGIN_POLLS=1 a test of a receive that nothing was sent to polls an empty completion queue too, as every transport has
 * to. scripts/instructions.sh builds and runs it.
 */
#include <infiniband/verbs.h>
#include <nccl/net_v8.h>
#include <stdlib.h>
#include <string.h>

#define RECEIVES 64

struct receive {
  void *data;
  int size;
  int is_done;
};

static struct receive receives[RECEIVES];
static unsigned begun, sent;
/* What the request of a send points to. */
static struct receive send_done = {.is_done = 1};
/* NULL: nothing is polled. */
static struct ibv_cq *queue;

static ncclResult_t init(ncclDebugLogger_t logger) {
  (void)logger;
  const char *polls = getenv("ANSWERING_PLUGIN_POLLS");
  int count;
  struct ibv_device **list = ibv_get_device_list(&count);
  if (!list || count == 0) return ncclSystemError;
  if (polls && strcmp(polls, "1") == 0) {
    struct ibv_context *context = ibv_open_device(list[0]);
    queue = context ? ibv_create_cq(context, 256, NULL, NULL, 0) : NULL;
    if (!queue) return ncclSystemError;
  }
  return ncclSuccess;
}

static ncclResult_t devices(int *count) {
  *count = 2;
  return ncclSuccess;
}

static ncclResult_t get_properties(int dev, ncclNetProperties_v8_t *props) {
  static char *names[] = {"answering0", "answering1"};
  memset(props, 0, sizeof *props);
  props->name = names[dev];
  props->guid = dev + 1;
  props->ptrSupport = NCCL_PTR_HOST;
  props->speed = 100000;
  props->port = 1;
  props->maxComms = 1;
  props->maxRecvs = 1;
  return ncclSuccess;
}

static ncclResult_t listen_at(int dev, void *handle, void **comm) {
  (void)dev, (void)handle;
  *comm = receives;
  return ncclSuccess;
}

static ncclResult_t connect_to(int dev, void *handle, void **comm, ncclNetDeviceHandle_v8_t **device) {
  (void)dev, (void)handle, (void)device;
  *comm = receives;
  return ncclSuccess;
}

static ncclResult_t accept_one(void *listener, void **comm, ncclNetDeviceHandle_v8_t **device) {
  (void)listener, (void)device;
  *comm = receives;
  return ncclSuccess;
}

static ncclResult_t reg_mr(void *comm, void *data, size_t size, int type, void **handle) {
  (void)comm, (void)data, (void)size, (void)type;
  *handle = receives;
  return ncclSuccess;
}

static ncclResult_t nothing(void *comm, void *handle) {
  (void)comm, (void)handle;
  return ncclSuccess;
}

static ncclResult_t close_one(void *comm) {
  (void)comm;
  return ncclSuccess;
}

static ncclResult_t isend(void *comm, void *data, int size, int tag, void *handle, void **request) {
  (void)comm, (void)tag, (void)handle;
  *request = NULL;
  if (sent == begun) return ncclSuccess;
  struct receive *into = &receives[sent++ % RECEIVES];
  if (size < into->size) into->size = size;
  memcpy(into->data, data, into->size);
  into->is_done = 1;
  *request = &send_done;
  return ncclSuccess;
}

static ncclResult_t irecv(void *comm, int n, void **data, int *sizes, int *tags, void **handles, void **request) {
  (void)comm, (void)n, (void)tags, (void)handles;
  struct receive *receive = &receives[begun++ % RECEIVES];
  *receive = (struct receive){.data = data[0], .size = sizes[0]};
  *request = receive;
  return ncclSuccess;
}

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **handles, void **request) {
  (void)comm, (void)n, (void)data, (void)sizes, (void)handles;
  *request = NULL;
  return ncclSuccess;
}

static ncclResult_t test(void *request, int *done, int *sizes) {
  struct receive *receive = request;
  *done = receive->is_done;
  if (*done) {
    if (sizes) sizes[0] = receive->size;
  } else if (queue) {
    struct ibv_wc found[4];
    if (ibv_poll_cq(queue, 4, found) != 0) return ncclSystemError;
  }
  return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = "Answering",
    .init = init,
    .devices = devices,
    .getProperties = get_properties,
    .listen = listen_at,
    .connect = connect_to,
    .accept = accept_one,
    .regMr = reg_mr,
    .deregMr = nothing,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .closeSend = close_one,
    .closeRecv = close_one,
    .closeListen = close_one,
};
