#!/usr/bin/env bash
# libmlx5's switches in the environment differ in what "on" is: MLX5_QP_SIGNATURE=0 is on, MLX5_SHUT_UP_BF=false is on, and
# MLX5_SINGLE_THREADED=true is off.
#
# One expects: 0, false and no switch off; 1, true and yes switch on; any other text is refused.
# What happens: each follows one of three rules. MLX5_SINGLE_THREADED is on for the text 1 alone. MLX5_SHUT_UP_BF and MLX5_SCATTER_TO_CQE
#   are on for each text but 0, even the empty one. MLX5_QP_SIGNATURE is on as soon as it is set.
# What follows: a measurement with MLX5_SHUT_UP_BF=no runs without BlueFlame. Write 0 or 1. To switch signatures off, unset the variable.
#
# Seen with libmlx5 of rdma-core 44.0 and 56.1, with a stand-in for the kernel's side. The script observes whether a post takes a lock,
# how much of it is copied to the doorbells (BlueFlame copies all of it), and with which flags libmlx5 requests a queue pair from the
# kernel.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/switches.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include "card.h"
static int locks;
int pthread_spin_lock(pthread_spinlock_t *lock) {
  locks++;
  return ((int (*)(pthread_spinlock_t *))dlsym(RTLD_NEXT, "pthread_spin_lock"))(lock);
}
int main(void) {
  open_device();
  struct ibv_qp *qp = ready_to_send(queue_pair(16, 16, 0));
  locks = 0;
  post_send(qp, IBV_WR_RDMA_WRITE, 1, 100, IBV_SEND_SIGNALED);
  int copied = 0;
  for (int i = 0; i < 4096; i += 8) copied += *(uint64_t *)(card.doorbells + i) != 0;
  printf("locks %s, BlueFlame %s, signature %s, scatter to CQE %s\n", locks ? "on" : "off", copied > 1 ? "on" : "off",
    card.qp_flags & 1 ? "on" : "off", card.qp_flags & 2 ? "on" : "off");
}
C
for version in bookworm=44.0-2 trixie=56.1-1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" switches
    seen=$(for setting in "" MLX5_SINGLE_THREADED={1,true,0} MLX5_SHUT_UP_BF={1,false,,0} MLX5_SCATTER_TO_CQE={0,false} MLX5_QP_SIGNATURE={1,0}; do
        echo "$setting: $(verbs_run "$suite" mlx5 "${setting:-A=}" switches)"
    done)
    compare "rdma-core ${version#*=}" "$seen" \
        ": locks on, BlueFlame on, signature off, scatter to CQE on
MLX5_SINGLE_THREADED=1: locks off, BlueFlame on, signature off, scatter to CQE on
MLX5_SINGLE_THREADED=true: locks on, BlueFlame on, signature off, scatter to CQE on
MLX5_SINGLE_THREADED=0: locks on, BlueFlame on, signature off, scatter to CQE on
MLX5_SHUT_UP_BF=1: locks on, BlueFlame off, signature off, scatter to CQE on
MLX5_SHUT_UP_BF=false: locks on, BlueFlame off, signature off, scatter to CQE on
MLX5_SHUT_UP_BF=: locks on, BlueFlame off, signature off, scatter to CQE on
MLX5_SHUT_UP_BF=0: locks on, BlueFlame on, signature off, scatter to CQE on
MLX5_SCATTER_TO_CQE=0: locks on, BlueFlame on, signature off, scatter to CQE off
MLX5_SCATTER_TO_CQE=false: locks on, BlueFlame on, signature off, scatter to CQE on
MLX5_QP_SIGNATURE=1: locks on, BlueFlame on, signature on, scatter to CQE on
MLX5_QP_SIGNATURE=0: locks on, BlueFlame on, signature on, scatter to CQE on"
done
exit "$status"
