#!/usr/bin/env bash
# RDMAV_DRIVERS=mlx5 loads libmlx5 in addition to all other drivers, not instead of them.
#
# One expects: a list of drivers in the environment selects the drivers, as UCX_TLS or FI_PROVIDER select transports.
# What happens: libibverbs loads the drivers in the variable first, and then all that /etc/libibverbs.d names. No setting leaves one out.
#   Colons or semicolons separate the names: `mlx5,erdma` is the name of one driver. IBV_DRIVERS is read only if RDMAV_DRIVERS is not set.
# What follows: a user cannot switch a faulty provider off. Its file in /etc/libibverbs.d has to be removed. A program that opens the
#   first device of the list may still get one of another driver.
#
# Seen with libibverbs of rdma-core 44.0 and 56.1, with a stand-in for the kernel's side that has a ConnectX.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/drivers.c" <<'C'
#include "card.h"
int main(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  static const char *const names[] = {"libmlx5-rdmav", "liberdma-rdmav", "libbnxt_re-rdmav", "librxe-rdmav"};
  char line[512];
  int found[4] = {0};
  FILE *maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps))
    for (int i = 0; i < 4; i++) found[i] |= strstr(line, names[i]) != NULL || (!i && strstr(line, "libmlx5.so"));
  printf("device %s; loaded: mlx5 %d, erdma %d, bnxt_re %d, rxe %d\n", list && *list ? ibv_get_device_name(*list) : "none", found[0], found[1],
    found[2], found[3]);
}
C
for version in bookworm=44.0-2 trixie=56.1-1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" drivers
    all="device mlx5_0; loaded: mlx5 1, erdma 1, bnxt_re 1, rxe 1"
    seen=$(for setting in A= RDMAV_DRIVERS=rxe RDMAV_DRIVERS=mlx5 "RDMAV_DRIVERS=rxe:erdma" "RDMAV_DRIVERS=rxe,erdma" IBV_DRIVERS=rxe; do
        said=$(verbs_run "$suite" mlx5 "$setting" drivers 2>&1 | sed "s/.*couldn't load driver '\([^']*\)-rdmav.*/not loaded: \1;/" | sort -r)
        echo "$setting: ${said//$'\n'/ }"
    done)
    compare "rdma-core ${version#*=}" "$seen" "A=: $all
RDMAV_DRIVERS=rxe: $all
RDMAV_DRIVERS=mlx5: $all
RDMAV_DRIVERS=rxe:erdma: $all
RDMAV_DRIVERS=rxe,erdma: not loaded: librxe,erdma; $all
IBV_DRIVERS=rxe: $all"
done
exit "$status"
