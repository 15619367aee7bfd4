#!/usr/bin/env bash
# libionic counts requests that ibv_wr_abort has removed, and reports completions of later sends late, by as many.
#
# One expects: after ibv_wr_abort, the queue pair is as it was before ibv_wr_start, so the next send completes as if nothing had been begun.
# What happens: libionic counts the messages that it gives to the card, and takes back only the requests, not that count. The card counts the
#   messages that it gets. A send is reported when the card has completed as many more as were aborted.
# What follows: a program that waits for the completion of its last send waits for ever. Do not call ibv_wr_abort, or reset the queue pair then.
#
# Seen with libionic (AMD's Pensando) of rdma-core 65.0, the first with ibv_wr_abort in it. The program writes the card's completions itself.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/abort.c" <<'C'
#include "card.h"
#include <endian.h>
static unsigned completed;
static void send_one(struct ibv_qp_ex *qp, int id, int is_aborted) {
  ibv_wr_start(qp);
  qp->wr_id = id, qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, 5, 0x1000);
  ibv_wr_set_sge(qp, region->lkey, (uintptr_t)memory, 8);
  if (is_aborted) ibv_wr_abort(qp), printf("send %d: aborted\n", id);
  else printf("send %d: %d\n", id, ibv_wr_complete(qp));
}
static void show(int aborted) {
  struct ibv_qp_init_attr_ex wish = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .cap = {8, 1, 1, 1, 0}, .pd = domain,
    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
  struct ibv_qp *qp = ready_to_send(ibv_create_qp_ex(context, &wish));
  for (int id = 1; id <= aborted; id++) send_one(ibv_qp_to_qp_ex(qp), id, 1);
  for (int messages = 1; messages <= 3; messages++) {
    send_one(ibv_qp_to_qp_ex(qp), 10 + messages, 0);
    /* The card has completed so many messages: its last word has the queue pair, the kind, and the turn of the ring. */
    unsigned char *entry = (unsigned char *)card.completions + 32 * completed++;
    *(uint32_t *)(entry + 4) = htobe32(messages);
    *(uint32_t *)(entry + 28) = htobe32(qp->qp_num << 8 | 2 << 5 | 1);
    struct ibv_wc found;
    int count = ibv_poll_cq(queue, 1, &found);
    printf("completed by the card: %d; poll: %d", messages, count);
    if (count == 1) printf(", send %d %s", (int)found.wr_id, ibv_wc_status_str(found.status));
    puts("");
  }
}
int main(void) {
  open_device();
  show(0);
  show(1);
}
C
expected="send 11: 0
completed by the card: 1; poll: 1, send 11 success
send 12: 0
completed by the card: 2; poll: 1, send 12 success
send 13: 0
completed by the card: 3; poll: 1, send 13 success
send 1: aborted
send 11: 0
completed by the card: 1; poll: 0
send 12: 0
completed by the card: 2; poll: 1, send 11 success
send 13: 0
completed by the card: 3; poll: 1, send 12 success"
verbs_get sid 65.0-1.1
verbs_build sid abort
compare "rdma-core 65.0" "$(verbs_run sid ionic abort)" "$expected"
exit "$status"
