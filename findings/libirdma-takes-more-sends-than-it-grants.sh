#!/usr/bin/env bash
# A queue pair of libirdma takes twice to eight times the sends that ibv_create_qp granted before ibv_post_send returns ENOMEM.
#
# One expects: max_send_wr after ibv_create_qp is the number of sends that fit, and the next one is refused, as with libmlx5.
# What happens: the send queue is counted in pieces of 32 bytes. The grant assumes that each send has max_send_sge elements. A send with one
#   element takes one piece, so with max_send_sge = 8 and a grant of 223 there is room for 1791. Receives are refused at the grant.
# What follows: a program that posts until ENOMEM, and has a completion queue of max_send_wr entries, can have more completions than entries.
#   Count the sends: ENOMEM is no limit.
#
# Seen with libirdma (Intel E810) of rdma-core 44.0, 56.1 and 65.0, with a stand-in for the kernel's side.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/grant.c" <<'C'
#include "card.h"
int main(void) {
  open_device();
  for (unsigned elements = 1; elements <= 8; elements *= 2) {
    struct ibv_qp_init_attr wish = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .cap = {100, 100, elements, 1, 0}};
    struct ibv_qp *qp = ready_to_send(ibv_create_qp(domain, &wish));
    int sends = 0, receives = 0, refused;
    while (!(refused = post_send(qp, IBV_WR_RDMA_WRITE, 1, 8, IBV_SEND_SIGNALED))) sends++;
    while (!post_receive(qp, 1)) receives++;
    printf("max_send_sge %u: granted %u sends, %u receives; taken %d, %d%s\n", elements, wish.cap.max_send_wr, wish.cap.max_recv_wr, sends,
      receives, refused == ENOMEM ? "; then ENOMEM" : "");
  }
}
C
for version in bookworm=44.0-2 trixie=56.1-1 sid=65.0-1.1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" grant
    compare "rdma-core ${version#*=}" "$(verbs_run "$suite" irdma grant)" \
        "max_send_sge 1: granted 127 sends, 127 receives; taken 255, 127; then ENOMEM
max_send_sge 2: granted 127 sends, 127 receives; taken 255, 127; then ENOMEM
max_send_sge 4: granted 191 sends, 127 receives; taken 767, 127; then ENOMEM
max_send_sge 8: granted 223 sends, 127 receives; taken 1791, 127; then ENOMEM"
done
exit "$status"
