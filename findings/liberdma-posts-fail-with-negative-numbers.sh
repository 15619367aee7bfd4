#!/usr/bin/env bash
# liberdma reports errors of ibv_post_send and ibv_post_recv as negative numbers, refuses posts to a queue pair in ERR, and accepts them
# in RESET.
#
# One expects: the value of errno on failure, above 0, as the manual page says. A queue pair in ERR accepts posts and flushes them; one in
#   RESET refuses them.
# What happens: the call returns -ENOMEM if the queue is full, -EINVAL for a wrong request, and -EIO in ERR. In RESET both calls return 0.
# What follows: `if (rc > 0)`, `rc == ENOMEM` and strerror(rc) miss these errors: compare abs(rc). A program that posts a marker in ERR
#   and waits until it is flushed gets none here. A post that comes too early is no error.
#
# Seen with liberdma (Alibaba's elastic RDMA adapter) of rdma-core 44.0 and 56.1, with a stand-in for the kernel's side.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/signs.c" <<'C'
#include "card.h"
static void state(const char *name, struct ibv_qp *qp) {
  printf("%s: send %d, receive %d\n", name, post_send(qp, IBV_WR_RDMA_WRITE, 1, 8, IBV_SEND_SIGNALED), post_receive(qp, 1));
}
int main(void) {
  open_device();
  printf("ENOMEM is %d, EINVAL %d, EIO %d\n", ENOMEM, EINVAL, EIO);
  struct ibv_qp *qp = queue_pair(4, 4, 0);
  state("RESET", qp);
  qp = ready_to_send(queue_pair(4, 4, 0));
  state("RTS", qp);
  printf("RTS, receive of 2 elements: %d\n", post_receive(qp, 2));
  for (int i = 0; i < 16; i++) post_send(qp, IBV_WR_RDMA_WRITE, 1, 8, IBV_SEND_SIGNALED), post_receive(qp, 1);
  state("RTS, full", qp);
  qp = ready_to_send(queue_pair(4, 4, 0)); to_state(qp, IBV_QPS_ERR);
  state("ERR", qp);
}
C
for version in bookworm=44.0-2 trixie=56.1-1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" signs
    compare "rdma-core ${version#*=}" "$(verbs_run "$suite" erdma signs)" \
        "ENOMEM is 12, EINVAL 22, EIO 5
RESET: send 0, receive 0
RTS: send 0, receive 0
RTS, receive of 2 elements: -22
RTS, full: send -12, receive -12
ERR: send -5, receive -5"
done
exit "$status"
