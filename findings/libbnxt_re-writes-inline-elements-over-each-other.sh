#!/usr/bin/env bash
# libbnxt_re of rdma-core 44 writes the second element of inline data 16 bytes after the first, however long that is.
#
# One expects: a send with IBV_SEND_INLINE carries the data of its elements, one after the other.
# What happens: each element begins in a piece of 16 bytes of its own. One of more than 16 bytes is overwritten by the next, and after a shorter
#   one a gap has what an earlier request left. The length is the sum, so the end is missing. The call returns 0.
# What follows: the peer gets wrong data, and no error. Post inline data as one element, or use rdma-core 47 or newer.
#
# Seen with libbnxt_re (NetXtreme-E) of rdma-core 44.0; 56.1 has it right. A stand-in for the card shows the request.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/inline.c" <<'C'
#include "card.h"
/* Elements of these lengths, of the letters a, b, ..., and what lies in the request that the card reads: after 32 bytes, up to the length. */
static void show(int first, int second) {
  struct ibv_qp_init_attr wish = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .cap = {4, 4, 2, 1, 64}};
  struct ibv_qp *qp = ready_to_send(ibv_create_qp(domain, &wish));
  struct ibv_qp_attr path = {.qp_state = IBV_QPS_RTS, .path_mtu = IBV_MTU_1024};
  ibv_modify_qp(qp, &path, IBV_QP_STATE | IBV_QP_PATH_MTU);
  memset(memory, 'a', first); memset(memory + first, 'b', second);
  struct ibv_sge list[] = {{(uintptr_t)memory, first}, {(uintptr_t)memory + first, second}};
  struct ibv_send_wr work = {.sg_list = list, .num_sge = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE}, *bad;
  int code = ibv_post_send(qp, &work, &bad);
  printf("%d + %d bytes, returned %d: ", first, second, code);
  for (int i = 0; i < first + second; i++) putchar(card.sends[32 + i] ? card.sends[32 + i] : '.');
  puts("");
}
int main(void) {
  open_device();
  show(20, 4);
  show(8, 4);
  show(16, 4);
}
C
right="20 + 4 bytes, returned 0: aaaaaaaaaaaaaaaaaaaabbbb
8 + 4 bytes, returned 0: aaaaaaaabbbb
16 + 4 bytes, returned 0: aaaaaaaaaaaaaaaabbbb"
wrong="20 + 4 bytes, returned 0: aaaaaaaaaaaaaaaabbbb....
8 + 4 bytes, returned 0: aaaaaaaa....
16 + 4 bytes, returned 0: aaaaaaaaaaaaaaaabbbb"
verbs_get bookworm 44.0-2
verbs_build bookworm inline
compare "rdma-core 44.0-2" "$(verbs_run bookworm bnxt_re inline)" "$wrong"
verbs_get trixie 56.1-1
verbs_build trixie inline
compare "rdma-core 56.1-1" "$(verbs_run trixie bnxt_re inline)" "$right"
exit "$status"
