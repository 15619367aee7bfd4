#!/usr/bin/env bash
# libibverbs knows no rate of 100 Gb/s: mbps_to_ibv_rate(100000) is 0, which means "no limit". The same holds for 25000 and 400000.
#
# One expects: mbps_to_ibv_rate(100000) is IBV_RATE_100_GBPS, and the way back gives 100000. A rate that does not exist is an error.
# What happens: up to QDR the table has the rates that the names say. From the lane speed of FDR on, it has the rates on the wire, with
#   the coding: 103125 for "100", 25781 for "25", 425000 for "400". Only these exact numbers are found. For all others the answer is
#   IBV_RATE_MAX, which is 0. ibv_rate_to_mult knows 50 and 400 Gb/s, but returns -1 for 100 and 200.
# What follows: a static rate (ibv_ah_attr.static_rate) that a program computes from the nominal speed of the port limits nothing, and
#   nothing reports it. Use the constants.
#
# Seen with libibverbs of rdma-core 44.0 and 56.1. No device is needed.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/rates.c" <<'C'
#include "card.h"
int main(void) {
  const int wishes[] = {10000, 40000, 25000, 50000, 100000, 200000, 400000, 103125};
  for (int i = 0; i < 8; i++) printf("%d: rate %d\n", wishes[i], mbps_to_ibv_rate(wishes[i]));
  const struct { const char *name; enum ibv_rate rate; } rates[] = {{"40", IBV_RATE_40_GBPS}, {"50", IBV_RATE_50_GBPS},
    {"100", IBV_RATE_100_GBPS}, {"200", IBV_RATE_200_GBPS}, {"400", IBV_RATE_400_GBPS}};
  for (int i = 0; i < 5; i++)
    printf("IBV_RATE_%s_GBPS: %d Mb/s, multiple of 2.5 Gb/s %d\n", rates[i].name, ibv_rate_to_mbps(rates[i].rate), ibv_rate_to_mult(rates[i].rate));
}
C
for version in bookworm=44.0-2 trixie=56.1-1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" rates
    compare "rdma-core ${version#*=}" "$(verbs_run "$suite" mlx5 rates)" \
        "10000: rate 3
40000: rate 7
25000: rate 0
50000: rate 0
100000: rate 0
200000: rate 0
400000: rate 0
103125: rate 16
IBV_RATE_40_GBPS: 40000 Mb/s, multiple of 2.5 Gb/s 16
IBV_RATE_50_GBPS: 53125 Mb/s, multiple of 2.5 Gb/s 20
IBV_RATE_100_GBPS: 103125 Mb/s, multiple of 2.5 Gb/s -1
IBV_RATE_200_GBPS: 206250 Mb/s, multiple of 2.5 Gb/s -1
IBV_RATE_400_GBPS: 425000 Mb/s, multiple of 2.5 Gb/s 160"
done
exit "$status"
