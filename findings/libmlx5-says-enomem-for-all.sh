#!/usr/bin/env bash
# ibv_post_send of libmlx5 returns ENOMEM for a full queue, but also for a queue pair that is not connected, too many elements, and too
# much inline data. A retry helps in the first case only.
#
# One expects: ENOMEM for a full queue, and EINVAL for a request that can never succeed or that the state forbids.
# What happens: libmlx5 returns ENOMEM for each send before RTS. In RTS, too many elements and too much inline data are ENOMEM as well. A
#   queue pair that moves from RTS to ERR accepts posts, to flush them. One that moves there from INIT or RTR, as when connecting fails,
#   returns ENOMEM. Receives differ: EINVAL in RESET, and for too many elements.
# What follows: a program that polls and posts again while it gets ENOMEM makes no progress on a connection whose set-up failed. Check the
#   state and the limits first.
#
# Seen with libmlx5 of rdma-core 44.0 and 56.1, with a stand-in for the kernel's side.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/enomem.c" <<'C'
#include "card.h"
static const char *word(int error) { return error == ENOMEM ? "ENOMEM" : error == EINVAL ? "EINVAL" : error ? strerror(error) : "taken"; }
static void state(const char *name, struct ibv_qp *qp) {
  printf("%s: send %s, receive %s\n", name, word(post_send(qp, IBV_WR_RDMA_WRITE, 1, 8, IBV_SEND_SIGNALED)), word(post_receive(qp, 1)));
}
int main(void) {
  open_device();
  struct ibv_qp *qp = queue_pair(4, 4, 0);
  state("RESET", qp);
  to_state(qp, IBV_QPS_INIT); state("INIT", qp);
  to_state(qp, IBV_QPS_RTR); state("RTR", qp);
  to_state(qp, IBV_QPS_RTS); state("RTS", qp);
  printf("RTS, 2 elements of 1: send %s, receive %s\n", word(post_send(qp, IBV_WR_RDMA_WRITE, 2, 8, 0)), word(post_receive(qp, 2)));
  printf("RTS, 1000 bytes inline: send %s\n", word(post_send(qp, IBV_WR_RDMA_WRITE, 1, 1000, IBV_SEND_INLINE)));
  printf("RTS, no such operation: send %s\n", word(post_send(qp, 99, 1, 8, 0)));
  for (int i = 0; i < 3; i++) post_send(qp, IBV_WR_RDMA_WRITE, 1, 8, IBV_SEND_SIGNALED), post_receive(qp, 1);
  state("RTS, full", qp);
  qp = ready_to_send(queue_pair(4, 4, 0)); to_state(qp, IBV_QPS_ERR); state("ERR, from RTS", qp);
  qp = queue_pair(4, 4, 0); to_state(qp, IBV_QPS_INIT); to_state(qp, IBV_QPS_ERR); state("ERR, from INIT", qp);
}
C
for version in bookworm=44.0-2 trixie=56.1-1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" enomem
    compare "rdma-core ${version#*=}" "$(verbs_run "$suite" mlx5 enomem)" \
        "RESET: send ENOMEM, receive EINVAL
INIT: send ENOMEM, receive taken
RTR: send ENOMEM, receive taken
RTS: send taken, receive taken
RTS, 2 elements of 1: send ENOMEM, receive EINVAL
RTS, 1000 bytes inline: send ENOMEM
RTS, no such operation: send EINVAL
RTS, full: send ENOMEM, receive ENOMEM
ERR, from RTS: send taken, receive taken
ERR, from INIT: send ENOMEM, receive taken"
done
exit "$status"
