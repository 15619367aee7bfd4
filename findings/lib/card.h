/* What the stand-in for a card (card.c) tells the program beside it, and what programs have in common. */
#include <stdint.h>
struct card {
  void *completions;          /* the completion queue created last */
  uint32_t completion_count;  /* its length */
  uint32_t user_index;        /* the number by which libmlx5 finds the queue pair created last */
  uint32_t qp_flags;          /* the flags with which libmlx5 asked for that queue pair */
  unsigned char *doorbells;   /* the page of doorbells mapped last */
  const unsigned char *sends; /* the send queue of the queue pair that libbnxt_re created last */
};
extern struct card card __attribute__((weak));

#ifdef IBVERBS_PROGRAM
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_cq *queue;
static struct ibv_mr *region;
static char memory[4096];

static inline void open_device(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  if (!list || !*list || !(context = ibv_open_device(*list)) || !(domain = ibv_alloc_pd(context))) { puts("no device"); exit(2); }
  region = ibv_reg_mr(domain, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  queue = ibv_create_cq(context, 63, NULL, NULL, 0);
}
/* A reliable connection's queue pair with room for `sends` and `receives` of one element each. */
static inline struct ibv_qp *queue_pair(unsigned sends, unsigned receives, unsigned inline_bytes) {
  struct ibv_qp_init_attr wish = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .cap = {sends, receives, 1, 1, inline_bytes}};
  errno = 0;
  return ibv_create_qp(domain, &wish);
}
static inline void to_state(struct ibv_qp *qp, enum ibv_qp_state state) {
  struct ibv_qp_attr change = {.qp_state = state};
  ibv_modify_qp(qp, &change, IBV_QP_STATE);
}
static inline struct ibv_qp *ready_to_send(struct ibv_qp *qp) {
  for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) to_state(qp, state);
  return qp;
}
static inline int post_send(struct ibv_qp *qp, enum ibv_wr_opcode operation, int elements, uint32_t bytes, unsigned flags) {
  struct ibv_sge list[64];
  for (int i = 0; i < 64; i++) list[i] = (struct ibv_sge){(uintptr_t)memory, bytes, region->lkey};
  struct ibv_send_wr work = {.wr_id = 7, .sg_list = list, .num_sge = elements, .opcode = operation, .send_flags = flags,
    .imm_data = 0x11223344, .wr.rdma = {0x1000, 5}}, *bad;
  return ibv_post_send(qp, &work, &bad);
}
static inline int post_receive(struct ibv_qp *qp, int elements) {
  struct ibv_sge list[8];
  for (int i = 0; i < 8; i++) list[i] = (struct ibv_sge){(uintptr_t)memory, 8, region->lkey};
  struct ibv_recv_wr work = {.sg_list = list, .num_sge = elements}, *bad;
  return ibv_post_recv(qp, &work, &bad);
}
#endif
