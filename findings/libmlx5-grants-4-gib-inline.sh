#!/usr/bin/env bash
# A queue pair of libmlx5 created with max_send_sge = 0 reports a max_inline_data of 4294967292 bytes, and takes none inline.
#
# One expects: a queue pair without elements for sends, as receivers use, reports 0 bytes of inline data.
# What happens: ibv_create_qp writes 4294967292, which is -4 as an unsigned number, into max_inline_data. With one element it is 60, though 0 was
#   asked for. A send without elements is taken; 8 bytes inline in one element return ENOMEM.
# What follows: a program that sends inline up to max_inline_data chooses inline for each size. One that allocates a buffer of that size asks for
#   4 GiB. Treat the value as 0 if max_send_sge was 0.
#
# Seen with libmlx5 of rdma-core 44.0, 56.1 and 65.0, with a stand-in for the kernel's side.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/inline.c" <<'C'
#include "card.h"
int main(void) {
  open_device();
  for (unsigned elements = 0; elements < 2; elements++) {
    struct ibv_qp_init_attr wish = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .cap = {16, 16, elements, 1, 0}};
    struct ibv_qp *qp = ready_to_send(ibv_create_qp(domain, &wish));
    printf("max_send_sge %u: max_inline_data %u; ", elements, wish.cap.max_inline_data);
    printf("no element: %s, ", post_send(qp, IBV_WR_RDMA_WRITE, 0, 0, 0) ? "refused" : "taken");
    printf("8 bytes inline: %s\n", post_send(qp, IBV_WR_RDMA_WRITE, 1, 8, IBV_SEND_INLINE) == ENOMEM ? "ENOMEM" : "taken");
  }
}
C
for version in bookworm=44.0-2 trixie=56.1-1 sid=65.0-1.1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" inline
    compare "rdma-core ${version#*=}" "$(verbs_run "$suite" mlx5 inline)" \
        "max_send_sge 0: max_inline_data 4294967292; no element: taken, 8 bytes inline: ENOMEM
max_send_sge 1: max_inline_data 60; no element: taken, 8 bytes inline: taken"
done
exit "$status"
