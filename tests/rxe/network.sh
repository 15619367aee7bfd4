#!/bin/bash
# The network of the virtual machine: rxe0 on veth0 (10.77.0.1), rxe1 on veth1 (10.77.0.2), the two ends of one cable.
#
#   network.sh up      makes it
#   network.sh again   the same from scratch, whatever has been done to it
set -euo pipefail

MTU=9000

up() {
    echo 1 >/proc/sys/net/ipv4/conf/default/accept_local
    echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
    ip -batch - <<END
link set lo up
link add veth0 address 02:00:00:00:77:01 mtu $MTU type veth peer name veth1 address 02:00:00:00:77:02 mtu $MTU
address add 10.77.0.1/24 dev veth0
address add 10.77.0.2/24 dev veth1
link set veth0 up
link set veth1 up
END
    # Both addresses are this machine's own, so what goes from one to the other would stay inside, where no rxe device
    # listens: these two ways are looked up before the table of own addresses.
    ip -batch - <<END
rule add pref 100 lookup local
rule add pref 10 iif lo from 10.77.0.1 to 10.77.0.2 lookup 101
rule add pref 11 iif lo from 10.77.0.2 to 10.77.0.1 lookup 102
rule del pref 0
route add 10.77.0.2 dev veth0 src 10.77.0.1 table 101
route add 10.77.0.1 dev veth1 src 10.77.0.2 table 102
neigh replace 10.77.0.2 lladdr 02:00:00:00:77:02 dev veth0 nud permanent
neigh replace 10.77.0.1 lladdr 02:00:00:00:77:01 dev veth1 nud permanent
END
    rdma link add rxe0 type rxe netdev veth0
    rdma link add rxe1 type rxe netdev veth1
}

# Everything goes with the cable, but for the rules and what stands for links of sysfs.
down() {
    local device
    for device in rxe0 rxe1; do
        umount "/sys/devices/virtual/infiniband/$device" 2>/dev/null || true
    done
    ip link delete veth0 2>/dev/null || true
    ip -batch - <<END
rule add pref 0 lookup local
rule del pref 10
rule del pref 11
rule del pref 100
END
}

case "${1:-}" in
up) up ;;
again) down && up ;;
*)
    echo "usage: $(basename "$0") up|again" >&2
    exit 2
    ;;
esac
