/* Stands in for the kernel's side of an RDMA device, of a ConnectX (libmlx5) or, with CARD=erdma, of Alibaba's (liberdma), or with
 * CARD=irdma, of an Intel E810 (libirdma), or with CARD=bnxt_re, of a Broadcom BCM57508 (libbnxt_re), or with CARD=ionic, of AMD's Pensando (libionic): answers what libibverbs and the provider ask of /dev/infiniband/uverbs0. Nothing is sent, and
 * nothing completes unless the program writes a completion itself. With CARD_TELLS it prints the size of each region. It is preloaded;
 * SYSFS_PATH names a folder with the few files that libibverbs reads (see verbs.sh). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/erdma-abi.h>
#include <rdma/irdma-abi.h>
#include <rdma/bnxt_re-abi.h>
#if __has_include(<rdma/ionic-abi.h>)
#include <rdma/ionic-abi.h>
#endif
#include "card.h"

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
struct card card; /* what the provider said of the queues that it created last */
static uint32_t next_handle = 1, next_number = 0x100;
static int is(const char *name) { const char *card = getenv("CARD"); return card && !strcmp(card, name); }
static int device = -1; /* the descriptor that stands for /dev/infiniband/uverbs0 */
#define IS_DEVICE(path) (!strncmp(path, "/dev/infiniband/uverbs", 22))
static int open_with(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
  return IS_DEVICE(path) ? device = real("/dev/zero", flags, mode) : real(path, flags, mode);
}
#define OPEN(name) int name(const char *path, int flags, ...) { \
  va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
  return open_with((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name), path, flags, mode); }
OPEN(open)
OPEN(open64)
int stat(const char *path, struct stat *answer) { return NEXT(stat)(IS_DEVICE(path) ? "/dev/zero" : path, answer); }
int __xstat(int version, const char *path, struct stat *answer) { /* of programs that were built with a glibc before 2.33 */
  return NEXT(__xstat)(version, IS_DEVICE(path) ? "/dev/zero" : path, answer);
}
int socket(int domain, int type, int protocol) {
  if (domain == AF_NETLINK && protocol == 20) { errno = EPROTONOSUPPORT; return -1; } /* NETLINK_RDMA: sysfs is read instead */
  return NEXT(socket)(domain, type, protocol);
}
static void *map(void *(*real)(void *, size_t, int, int, int, off_t), void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 && fd == device && offset) /* a page of doorbells */
    return card.doorbells = real(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return real(at, length, protection, flags, fd, offset);
}
void *mmap(void *at, size_t l, int p, int f, int fd, off_t o) { return map(NEXT(mmap), at, l, p, f, fd, o); }
void *mmap64(void *at, size_t l, int p, int f, int fd, off_t o) { return map((void *)dlsym(RTLD_NEXT, "mmap64"), at, l, p, f, fd, o); }

/* libionic finds its cards only by the number of their driver, which the kernel tells by netlink. Here it finds them by their modalias. */
struct pattern { void *data; const char *modalias; uint16_t numbers[2]; uint8_t kind; };
struct driver { const char *name; uint32_t versions[2]; const struct pattern *cards; void *functions[6]; };
void verbs_register_driver_65(const struct driver *driver) {
  static const struct pattern cards[] = {{.modalias = "pci:v00001DD8d*", .kind = 2}, {0}};
  static struct driver other;
  if (!strcmp(driver->name, "ionic")) { other = *driver; other.cards = cards; driver = &other; }
  NEXT(verbs_register_driver_65)(driver);
}

struct call { struct ib_uverbs_ioctl_hdr *header; };
static struct ib_uverbs_attr *attribute(struct call *call, unsigned id) {
  for (unsigned i = 0; i < call->header->num_attrs; i++)
    if (call->header->attrs[i].attr_id == id) return &call->header->attrs[i];
  return NULL;
}
static const void *input(struct call *call, unsigned id) {
  struct ib_uverbs_attr *a = attribute(call, id);
  return !a ? NULL : a->len <= 8 ? (void *)&a->data : (void *)(uintptr_t)a->data;
}
static void answer(struct call *call, unsigned id, const void *from, size_t length) {
  struct ib_uverbs_attr *a = attribute(call, id);
  if (!a) return;
  memset((void *)(uintptr_t)a->data, 0, a->len);
  memcpy((void *)(uintptr_t)a->data, from, length < a->len ? length : a->len);
  a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}
static void handle(struct call *call, unsigned id) {
  struct ib_uverbs_attr *a = attribute(call, id);
  if (a) a->data = next_handle++;
}

/* As a ConnectX-7 says. */
static const struct ib_uverbs_query_device_resp limits = {.max_mr_size = ~0ull, .page_size_cap = ~0ull << 12, .vendor_id = 0x2c9,
  .vendor_part_id = 4129, .max_qp = 131072, .max_qp_wr = 32768, .max_sge = 30, .max_sge_rd = 30, .max_cq = 1 << 24, .max_cqe = 4194303,
  .max_mr = 1 << 24, .max_pd = 1 << 23, .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16, .phys_port_cnt = 1, .max_pkeys = 128};

static int written(struct call *call) {
  uint32_t command = *(uint32_t *)input(call, UVERBS_ATTR_WRITE_CMD);
  switch (command) {
  case IB_USER_VERBS_CMD_QUERY_DEVICE:
    if (!attribute(call, UVERBS_ATTR_CORE_OUT)) return ENOSPC; /* libibverbs looks whether there are such calls at all */
    answer(call, UVERBS_ATTR_CORE_OUT, &limits, sizeof limits);
    return 0;
  case IB_USER_VERBS_EX_CMD_QUERY_DEVICE | 0x80000000u: {
    struct ib_uverbs_ex_query_device_resp r = {.base = limits, .response_length = sizeof r};
    answer(call, UVERBS_ATTR_CORE_OUT, &r, sizeof r);
    struct mlx5_ib_query_device_resp d = {.response_length = sizeof d};
    answer(call, UVERBS_ATTR_UHW_OUT, &d, sizeof d);
    return 0;
  }
  case IB_USER_VERBS_CMD_ALLOC_PD: {
    struct ib_uverbs_alloc_pd_resp r = {next_handle++};
    struct mlx5_ib_alloc_pd_resp d = {next_number++};
    struct bnxt_re_pd_resp b = {.pdid = d.pdn, .dbr = 0x10000};
    answer(call, UVERBS_ATTR_CORE_OUT, &r, sizeof r);
    if (is("bnxt_re")) { answer(call, UVERBS_ATTR_UHW_OUT, &b, sizeof b); return 0; }
    answer(call, UVERBS_ATTR_UHW_OUT, &d, sizeof d);
    return 0;
  }
  case IB_USER_VERBS_CMD_REG_MR: {
    struct ib_uverbs_reg_mr_resp r = {next_handle++, next_number, next_number};
    const struct ib_uverbs_reg_mr *wish = input(call, UVERBS_ATTR_CORE_IN);
    if (getenv("CARD_TELLS")) fprintf(stderr, "card: region of %llu bytes\n", (unsigned long long)wish->length);
    next_number++;
    answer(call, UVERBS_ATTR_CORE_OUT, &r, sizeof r);
    return 0;
  }
  case IB_USER_VERBS_CMD_MODIFY_QP: return 0;
  case IB_USER_VERBS_EX_CMD_MODIFY_QP | 0x80000000u: {
    struct ib_uverbs_ex_modify_qp_resp r = {.response_length = sizeof r};
    answer(call, UVERBS_ATTR_CORE_OUT, &r, sizeof r);
    return 0;
  }
  }
  return EOPNOTSUPP;
}

static int asked(struct call *call) {
  unsigned object = call->header->object_id, method = call->header->method_id;
  switch (object << 16 | method) {
  case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_INVOKE_WRITE: return written(call);
  case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT: {
    uint32_t vectors = 4; uint64_t support = 1;
    answer(call, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &vectors, 4);
    answer(call, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &support, 8);
    if (is("erdma")) {
      struct erdma_uresp_alloc_ctx e = {.dev_id = 1, .sdb_type = 1, .sdb_offset = 0, .sdb = 0x10000, .rdb = 0x20000, .cdb = 0x30000};
      answer(call, UVERBS_ATTR_UHW_OUT, &e, sizeof e);
      return 0;
    }
    if (is("irdma")) {
      struct irdma_alloc_ucontext_resp i = {.max_pds = 1 << 18, .max_qps = 1 << 17, .wq_size = 32768, .kernel_ver = 5, .feature_flags = 1,
        .db_mmap_key = 0x100000, .max_hw_wq_frags = 13, .max_hw_read_sges = 13, .max_hw_inline = 101, .max_hw_rq_quanta = 32768,
        .max_hw_wq_quanta = 32768, .min_hw_cq_size = 4, .max_hw_cq_size = 2097152, .max_hw_sq_chunk = 128, .hw_rev = 2};
      answer(call, UVERBS_ATTR_UHW_OUT, &i, sizeof i);
      return 0;
    }
    if (is("bnxt_re")) {
      struct bnxt_re_uctx_resp b = {.max_qp = 65536, .pg_size = 4096, .cqe_sz = 32, .max_cqd = limits.max_cqe, .comp_mask = 1, .chip_id0 = 0x1750};
      answer(call, UVERBS_ATTR_UHW_OUT, &b, sizeof b);
      return 0;
    }
#ifdef IONIC_ABI_VERSION
    if (is("ionic")) {
      struct ionic_ctx_resp i = {.page_shift = 12, .dbell_offset = 0x100000, .version = 2, .qp_opcodes = 9, .rq_qtype = 1, .cq_qtype = 2,
        .max_stride = 9, .udma_count = 1};
      answer(call, UVERBS_ATTR_UHW_OUT, &i, sizeof i);
      return 0;
    }
#endif
    struct mlx5_ib_alloc_ucontext_resp r = {.bf_reg_size = 512, .cache_line_size = 64, .max_sq_desc_sz = 1024, .max_rq_desc_sz = 512,
      .max_send_wqebb = 32768, .max_recv_wr = 32768, .max_srq_recv_wr = 32767, .num_ports = 1, .response_length = sizeof r,
      .cqe_version = 1, .cmds_supp_uhw = 3, .eth_min_inline = 1, .log_uar_size = 12, .num_uars_per_page = 1};
    answer(call, UVERBS_ATTR_UHW_OUT, &r, sizeof r);
    return 0;
  }
  case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_PORT: {
    struct ib_uverbs_query_port_resp_ex r = {.legacy_resp = {.gid_tbl_len = 4, .state = 4, .max_mtu = 5, .active_mtu = 5, .pkey_tbl_len = 1,
      .active_width = 2, .active_speed = 128, .phys_state = 5, .link_layer = 2, .max_msg_sz = 1 << 30}};
    /* XDR: the old field of 8 bits cannot hold it, and the kernel leaves NDR there. */
    *(uint32_t *)((char *)&r + sizeof r.legacy_resp + 4) = 256;
    answer(call, UVERBS_ATTR_QUERY_PORT_RESP, &r, sizeof r);
    return 0;
  }
  case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE: {
    const uint32_t *wish = input(call, UVERBS_ATTR_CREATE_CQ_CQE);
    uint32_t cqe = *wish;
    handle(call, UVERBS_ATTR_CREATE_CQ_HANDLE);
    if (is("erdma")) {
      struct erdma_uresp_create_cq e = {next_number++, cqe};
      answer(call, UVERBS_ATTR_UHW_OUT, &e, sizeof e);
    } else if (is("irdma")) {
      const struct irdma_create_cq_req *c = input(call, UVERBS_ATTR_UHW_IN);
      card.completions = (void *)(uintptr_t)c->user_cq_buf;
      card.completion_count = cqe;
      struct irdma_create_cq_resp i = {next_number++, cqe};
      answer(call, UVERBS_ATTR_UHW_OUT, &i, sizeof i);
    } else if (is("bnxt_re")) {
      struct bnxt_re_cq_resp b = {.cqid = next_number++, .phase = 1};
      answer(call, UVERBS_ATTR_UHW_OUT, &b, sizeof b);
#ifdef IONIC_ABI_VERSION
    } else if (is("ionic")) {
      const struct ionic_cq_req *c = input(call, UVERBS_ATTR_UHW_IN);
      card.completions = (void *)(uintptr_t)c->cq[0].addr;
      card.completion_count = c->cq[0].mask + 1;
      struct ionic_cq_resp i = {.cqid = {next_number++}, .udma_mask = 1};
      answer(call, UVERBS_ATTR_UHW_OUT, &i, sizeof i);
#endif
    } else {
      const struct mlx5_ib_create_cq *c = input(call, UVERBS_ATTR_UHW_IN);
      card.completions = (void *)(uintptr_t)c->buf_addr;
      card.completion_count = cqe + 1;
      struct mlx5_ib_create_cq_resp d = {.cqn = next_number++};
      answer(call, UVERBS_ATTR_UHW_OUT, &d, sizeof d);
    }
    answer(call, UVERBS_ATTR_CREATE_CQ_RESP_CQE, &cqe, 4);
    return 0;
  }
  case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE: {
    struct ib_uverbs_qp_cap cap = *(const struct ib_uverbs_qp_cap *)input(call, UVERBS_ATTR_CREATE_QP_CAP);
    uint32_t number = next_number++;
    handle(call, UVERBS_ATTR_CREATE_QP_HANDLE);
    if (is("erdma")) {
      struct erdma_uresp_create_qp e = {number, 0, 0, 0};
      uint32_t sq = 1, rq = 1;
      while (sq < cap.max_send_wr * 4) sq *= 2;
      while (rq < cap.max_recv_wr) rq *= 2;
      e.num_sqe = sq; e.num_rqe = rq; e.rq_offset = (sq * 32 + 4095) / 4096 * 4096;
      answer(call, UVERBS_ATTR_UHW_OUT, &e, sizeof e);
    } else if (is("irdma")) {
      struct irdma_create_qp_resp i = {.qp_id = number, .actual_sq_size = cap.max_send_wr, .actual_rq_size = cap.max_recv_wr, .push_idx = 0xffff,
        .qp_caps = 7};
      answer(call, UVERBS_ATTR_UHW_OUT, &i, sizeof i);
    } else if (is("bnxt_re")) {
      const struct bnxt_re_qp_req *q = input(call, UVERBS_ATTR_UHW_IN);
      card.sends = (void *)(uintptr_t)q->qpsva;
      struct bnxt_re_qp_resp b = {.qpid = number};
      answer(call, UVERBS_ATTR_UHW_OUT, &b, sizeof b);
#ifdef IONIC_ABI_VERSION
    } else if (is("ionic")) {
      struct ionic_qp_resp i = {.qpid = number};
      answer(call, UVERBS_ATTR_UHW_OUT, &i, sizeof i);
#endif
    } else {
      const struct mlx5_ib_create_qp *q = input(call, UVERBS_ATTR_UHW_IN);
      card.user_index = q->uidx;
      card.qp_flags = q->flags;
      struct mlx5_ib_create_qp_resp d = {0};
      answer(call, UVERBS_ATTR_UHW_OUT, &d, sizeof d);
    }
    answer(call, UVERBS_ATTR_CREATE_QP_RESP_CAP, &cap, sizeof cap);
    answer(call, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &number, 4);
    return 0;
  }
  case UVERBS_OBJECT_ASYNC_EVENT << 16 | UVERBS_METHOD_ASYNC_EVENT_ALLOC: {
    int ends[2];
    if (pipe(ends)) return EMFILE;
    attribute(call, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)->data = ends[0];
    return 0;
  }
  case MLX5_IB_OBJECT_UAR << 16 | MLX5_IB_METHOD_UAR_OBJ_ALLOC: {
    uint64_t offset = 0x100000; uint32_t length = 4096, page = 7;
    handle(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
    answer(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &offset, 8);
    answer(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &length, 4);
    answer(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &page, 4);
    return 0;
  }
  case MLX5_IB_OBJECT_DEVX << 16 | MLX5_IB_METHOD_DEVX_OTHER: {
    char zero[8192] = {0};
    struct ib_uverbs_attr *a = attribute(call, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT);
    if (a && a->len <= sizeof zero) answer(call, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, zero, a->len);
    return 0;
  }
  case UVERBS_OBJECT_MR << 16 | UVERBS_METHOD_MR_DESTROY:
  case UVERBS_OBJECT_PD << 16 | UVERBS_METHOD_PD_DESTROY:
  case MLX5_IB_OBJECT_UAR << 16 | MLX5_IB_METHOD_UAR_OBJ_DESTROY: return 0;
  case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_DESTROY: {
    struct ib_uverbs_destroy_cq_resp r = {0, 0};
    answer(call, UVERBS_ATTR_DESTROY_CQ_RESP, &r, sizeof r);
    return 0;
  }
  case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_DESTROY: {
    struct ib_uverbs_destroy_qp_resp r = {0};
    answer(call, UVERBS_ATTR_DESTROY_QP_RESP, &r, sizeof r);
    return 0;
  }
  }
  return EOPNOTSUPP;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  if (request != RDMA_VERBS_IOCTL) return NEXT(ioctl)(fd, request, argument);
  struct call call = {argument};
  int error = asked(&call);
  if (!error) return 0;
  errno = error;
  return -1;
}
