#!/usr/bin/env bash
# max_qp_wr of a ConnectX is 32768, but ibv_create_qp grants at most 8192 sends, fewer with inline data, and returns EINVAL above that.
#
# One expects: a queue pair can have as many sends as ibv_query_device says.
# What happens: the card counts blocks of 64 bytes. ibv_create_qp reserves room in each request for the largest operation, an atomic or a
#   bind, even if the program only writes: four blocks without inline data, more with it. The error is EINVAL, as for a wrong argument.
#   ibv_create_qp_ex with the operations in send_ops_flags grants all 32768 for writes. The number granted is no power of two, and not the
#   one requested: 4096 with 64 bytes inline become 6553 with 124 bytes.
# What follows: name the operations, or halve the number until it is granted. Read the capacities that come back.
#
# Seen with libmlx5 of rdma-core 44.0 and 56.1, with a stand-in for the kernel's side that has the limits of a ConnectX-7.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/limits.c" <<'C'
#include "card.h"
static void basic(unsigned sends, unsigned inline_bytes) {
  struct ibv_qp_init_attr wish = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .cap = {sends, 1, 1, 1, inline_bytes}};
  errno = 0;
  printf("%u sends, %u inline: ", sends, inline_bytes);
  if (ibv_create_qp(domain, &wish)) printf("%u sends, %u inline\n", wish.cap.max_send_wr, wish.cap.max_inline_data);
  else printf("%s\n", errno == EINVAL ? "EINVAL" : strerror(errno));
}
int main(void) {
  struct ibv_device_attr device;
  open_device();
  ibv_query_device(context, &device);
  printf("max_qp_wr: %d\n", device.max_qp_wr);
  basic(8192, 0); basic(8193, 0); basic(32768, 0); basic(4096, 64); basic(8192, 64);
  struct ibv_qp_init_attr_ex wish = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .cap = {32768, 1, 1, 1, 0}, .pd = domain,
    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
  struct ibv_qp *qp = ibv_create_qp_ex(context, &wish);
  printf("32768 sends, writes alone: %s\n", qp ? "granted" : strerror(errno));
}
C
for version in bookworm=44.0-2 trixie=56.1-1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" limits
    compare "rdma-core ${version#*=}" "$(verbs_run "$suite" mlx5 limits)" \
        "max_qp_wr: 32768
8192 sends, 0 inline: 8192 sends, 60 inline
8193 sends, 0 inline: EINVAL
32768 sends, 0 inline: EINVAL
4096 sends, 64 inline: 6553 sends, 124 inline
8192 sends, 64 inline: EINVAL
32768 sends, writes alone: granted"
done
exit "$status"
