/* Stands in for libibverbs, with one InfiniBand port that reaches this process alone. RDMA WRITE,
 * READ and FETCH_ADD are executed when they are posted, and complete in order. Receives never
 * complete. FABRIC_GIDS may list the port's GIDs. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>

enum { ENTRIES = 1 << 16 };
struct queue { struct ibv_cq cq; struct ibv_wc done[ENTRIES]; unsigned head, tail; };
static struct ibv_device device = {.name = "fabric0", .dev_name = "fabric0", .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB};
static uint32_t next_number = 1;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  struct queue *queue = (struct queue *)qp->send_cq;
  for (; wr; wr = wr->next) {
    struct ibv_wc wc = {.wr_id = wr->wr_id, .qp_num = qp->qp_num};
    char *here = (char *)wr->sg_list->addr, *there = (char *)wr->wr.rdma.remote_addr;
    size_t size = wr->num_sge ? wr->sg_list->length : 0;
    if (wr->opcode == IBV_WR_RDMA_WRITE) memmove(there, here, size);
    else if (wr->opcode == IBV_WR_RDMA_READ) memmove(here, there, size);
    else if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      *(uint64_t *)here = __atomic_fetch_add((uint64_t *)wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add, __ATOMIC_SEQ_CST);
    else { *bad = wr; return EINVAL; }
    if (wr->send_flags & IBV_SEND_SIGNALED) queue->done[queue->tail++ % ENTRIES] = wc;
  }
  return 0;
}
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) { return 0; }
static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc) {
  struct queue *queue = (struct queue *)cq;
  int count = 0;
  while (count < most && queue->head != queue->tail) wc[count++] = queue->done[queue->head++ % ENTRIES];
  return count;
}

#undef ibv_query_port
#undef ibv_reg_mr
int ibv_fork_init(void) { return 0; }
const char *ibv_event_type_str(enum ibv_event_type event) { return "event"; }
struct ibv_device **ibv_get_device_list(int *count) {
  struct ibv_device **list = calloc(2, sizeof *list);
  list[0] = &device;
  if (count) *count = 1;
  return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *of) { return of->name; }
struct ibv_context *ibv_open_device(struct ibv_device *of) {
  struct ibv_context *context = calloc(1, sizeof *context);
  context->device = of;
  context->ops.post_send = post_send, context->ops.post_recv = post_recv, context->ops.poll_cq = poll_cq;
  return context;
}
int ibv_close_device(struct ibv_context *context) { return 0; }
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) { for (;;) pause(); }
void ibv_ack_async_event(struct ibv_async_event *event) {}
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  *attr = (struct ibv_device_attr){.phys_port_cnt = 1, .max_qp = 1 << 16, .max_cq = 1 << 16, .max_mr = 1 << 16, .max_qp_wr = 1 << 14,
    .max_cqe = 1 << 16, .max_sge = 16, .max_qp_rd_atom = 16, .atomic_cap = IBV_ATOMIC_HCA, .node_guid = 1, .sys_image_guid = 1};
  return 0;
}
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat) {
  struct ibv_port_attr *attr = (void *)compat;
  memset(attr, 0, offsetof(struct ibv_port_attr, link_layer) + 1);
  attr->state = IBV_PORT_ACTIVE, attr->max_mtu = attr->active_mtu = IBV_MTU_4096, attr->gid_tbl_len = 1, attr->max_msg_sz = 1u << 31;
  attr->lid = 1, attr->active_width = 2, attr->active_speed = 32, attr->link_layer = IBV_LINK_LAYER_INFINIBAND;
  return 0;
}
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  *gid = (union ibv_gid){.raw = {[15] = 1}};
  const char *list = getenv("FABRIC_GIDS");
  if (!list) return 0;
  char address[64];
  while (index-- > 0 && list) list = strchr(list, ' ') ? strchr(list, ' ') + 1 : NULL;
  return list && sscanf(list, "%63s", address) == 1 && inet_pton(AF_INET6, address, gid) == 1 ? 0 : -1;
}
int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) { *pkey = 0xffff; return 0; }
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct ibv_pd *pd = calloc(1, sizeof *pd);
  pd->context = context;
  return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) { return 0; }
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  struct ibv_mr *mr = calloc(1, sizeof *mr);
  *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = next_number, .rkey = next_number};
  next_number++;
  return mr;
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access) {
  return ibv_reg_mr(pd, addr, length, access);
}
/* NCCL calls this with descriptor -1 to find out whether DMA-BUF is supported: EBADF is yes. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  errno = EBADF;
  return NULL;
}
int ibv_dereg_mr(struct ibv_mr *mr) { return 0; }
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector) {
  struct queue *queue = calloc(1, sizeof *queue);
  queue->cq.context = context, queue->cq.cqe = ENTRIES;
  return &queue->cq;
}
int ibv_destroy_cq(struct ibv_cq *cq) { return 0; }
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  struct ibv_qp *qp = calloc(1, sizeof *qp);
  *qp = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq, .qp_type = attr->qp_type};
  qp->qp_num = next_number++;
  return qp;
}
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) { if (mask & IBV_QP_STATE) qp->state = attr->qp_state; return 0; }
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
  *attr = (struct ibv_qp_attr){.qp_state = qp->state};
  return 0;
}
int ibv_destroy_qp(struct ibv_qp *qp) { return 0; }
