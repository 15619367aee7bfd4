#!/usr/bin/env bash
# libmlx5 sets IBV_WC_WITH_IMM in the completion of an immediate that was *sent*, and leaves the immediate and the length as they were in
# memory.
#
# One expects: IBV_WC_WITH_IMM means that imm_data holds an immediate that has arrived.
# What happens: the flag is also set for the sender's own RDMA_WRITE_WITH_IMM and SEND_WITH_IMM. imm_data is not written then, nor is
#   byte_len for any successful write or send. Both keep what the caller's array held, usually values of an earlier completion.
# What follows: a program may use one completion queue for both directions, and check the flag before the opcode. It then takes its own
#   send for a message that has arrived, with the immediate and the length of an earlier one. Check the opcode first (`opcode &
#   IBV_WC_RECV`).
#
# Seen with libmlx5 of rdma-core 44.0 and 56.1. A stand-in for the card writes the completions.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/sent.c" <<'C'
#include "card.h"
#include <endian.h>
#include <infiniband/mlx5dv.h>
static void send(struct ibv_qp *qp, const char *name, enum ibv_wr_opcode operation, unsigned of_card, unsigned nth) {
  post_send(qp, operation, 1, 100, IBV_SEND_SIGNALED);
  struct mlx5_cqe64 *entry = (struct mlx5_cqe64 *)card.completions + nth;
  memset(entry, 0, sizeof *entry);
  entry->srqn_uidx = htobe32(card.user_index);
  entry->sop_drop_qpn = htobe32(of_card << 24 | qp->qp_num);
  entry->wqe_counter = htobe16(nth);
  entry->byte_cnt = htobe32(100);
  struct ibv_wc completion = {.imm_data = 0xaaaaaaaa, .byte_len = 4242};
  int found = ibv_poll_cq(queue, 1, &completion);
  printf("%s: %d completion, flag %s, immediate %s, length %u\n", name, found, completion.wc_flags & IBV_WC_WITH_IMM ? "set" : "not set",
    completion.imm_data == 0xaaaaaaaa ? "not written" : "written", completion.byte_len);
}
int main(void) {
  open_device();
  struct ibv_qp *qp = ready_to_send(queue_pair(16, 16, 0));
  send(qp, "write", IBV_WR_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE, 0);
  send(qp, "write with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, MLX5_OPCODE_RDMA_WRITE_IMM, 1);
  send(qp, "send with immediate", IBV_WR_SEND_WITH_IMM, MLX5_OPCODE_SEND_IMM, 2);
  send(qp, "read", IBV_WR_RDMA_READ, MLX5_OPCODE_RDMA_READ, 3);
}
C
for version in bookworm=44.0-2 trixie=56.1-1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" sent
    compare "rdma-core ${version#*=}, 4242 stood in the length" "$(verbs_run "$suite" mlx5 sent)" \
        "write: 1 completion, flag not set, immediate not written, length 4242
write with immediate: 1 completion, flag set, immediate not written, length 4242
send with immediate: 1 completion, flag set, immediate not written, length 4242
read: 1 completion, flag not set, immediate not written, length 100"
done
exit "$status"
