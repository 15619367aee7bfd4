#!/usr/bin/env bash
# libionic reports flushed receives with the wr_ids of others, and leaves some out.
#
# One expects: after a move to the error state, each posted receive completes with IBV_WC_WR_FLUSH_ERR, in order, with its own wr_id.
# What happens: once receives have completed and others were posted, libionic looks for the flushed ones by their place in the queue, where it
#   keeps them by another number. It reports those that it finds there, or ibv_poll_cq fails with -EIO. The rest is never reported.
# What follows: a program that waits for all its receives waits for ever, and one that looks at wr_ids frees the wrong buffers. Destroy the
#   queue pair instead of waiting for the flush.
#
# Seen with libionic (AMD's Pensando) of rdma-core 65.0; the sources of 61 to 64 do the same. The program writes the card's completions itself.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/flush.c" <<'C'
#include "card.h"
#include <endian.h>
static unsigned completed;
static void receive(struct ibv_qp *qp, int first, int last) {
  for (int id = first; id <= last; id++) {
    struct ibv_recv_wr work = {.wr_id = id}, *bad;
    printf("receive %d: %d\n", id, ibv_post_recv(qp, &work, &bad));
  }
}
static void poll_twice(void) {
  for (int again = 0; again < 2; again++) {
    struct ibv_wc found[8];
    int count = ibv_poll_cq(queue, 8, found);
    printf("poll: %d", count);
    for (int at = 0; at < count; at++) printf(", %d %s", (int)found[at].wr_id, ibv_wc_status_str(found[at].status));
    puts("");
  }
}
/* `first` receives of a queue pair complete, others are posted, and the queue pair is moved to the error state. */
static void show(int first, int last) {
  struct ibv_qp *qp = ready_to_send(queue_pair(4, 8, 0));
  receive(qp, 1, first);
  for (int place = 0; place < first; place++) {
    /* The card's completion of the receive at this place: its last word has the queue pair, the kind, and the turn of the ring. */
    unsigned char *entry = (unsigned char *)card.completions + 32 * completed++;
    entry[0] = place;
    *(uint32_t *)(entry + 28) = htobe32(qp->qp_num << 8 | 1 << 5 | 1);
  }
  poll_twice();
  receive(qp, first + 1, last);
  to_state(qp, IBV_QPS_ERR);
  poll_twice();
}
int main(void) {
  open_device();
  show(0, 2);
  show(2, 6);
  show(1, 2);
}
C
expected="poll: 0
poll: 0
receive 1: 0
receive 2: 0
poll: 2, 1 Work Request Flushed Error, 2 Work Request Flushed Error
poll: 0
receive 1: 0
receive 2: 0
poll: 2, 1 success, 2 success
poll: 0
receive 3: 0
receive 4: 0
receive 5: 0
receive 6: 0
poll: 2, 5 Work Request Flushed Error, 6 Work Request Flushed Error
poll: 0
receive 1: 0
poll: 1, 1 success
poll: 0
receive 2: 0
poll: -5
poll: 0"
verbs_get sid 65.0-1.1
verbs_build sid flush
compare "rdma-core 65.0" "$(verbs_run sid ionic flush)" "$expected"
exit "$status"
