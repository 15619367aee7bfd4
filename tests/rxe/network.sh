#!/bin/bash
# The network of the virtual machine: rxe0 on veth0 (10.77.0.1), rxe1 on veth1 (10.77.0.2), the two ends of one cable.
#
#   network.sh up      makes it
#   network.sh again   makes it from scratch, whatever has been done to it
#   network.sh ways    lays the ways between its addresses anew, which a link that goes down loses
set -euo pipefail

# The ways between the addresses. All are this machine's own, so what goes from one to the other would stay inside, where no
# rxe device listens: the rules have these two ways looked up before the table of own addresses.
rules() {
    cat <<END
rule add pref 100 lookup local
rule add pref 10 iif lo from $1 to $2 lookup 101
rule add pref 11 iif lo from $2 to $1 lookup 102
rule del pref 0
END
}

ways() {
    cat <<END
route replace 10.77.0.2 dev veth0 table 101
route replace 10.77.0.1 dev veth1 table 102
route replace fd77::2 dev veth0 table 101
route replace fd77::1 dev veth1 table 102
neigh replace 10.77.0.2 lladdr 02:00:00:00:77:02 dev veth0 nud permanent
neigh replace 10.77.0.1 lladdr 02:00:00:00:77:01 dev veth1 nud permanent
neigh replace fd77::2 lladdr 02:00:00:00:77:02 dev veth0 nud permanent
neigh replace fd77::1 lladdr 02:00:00:00:77:01 dev veth1 nud permanent
END
}

cable() {
    cat <<END
link add veth0 address 02:00:00:00:77:01 mtu 9000 type veth peer name veth1 address 02:00:00:00:77:02 mtu 9000
address add 10.77.0.1/24 dev veth0
address add 10.77.0.2/24 dev veth1
link set veth0 up
link set veth1 up
END
    ways
}

devices() {
    rdma -b - <<END
link add rxe0 type rxe netdev veth0
link add rxe1 type rxe netdev veth1
END
}

case "${1:-}" in
up)
    echo 1 >/proc/sys/net/ipv4/conf/default/accept_local
    rules fd77::1 fd77::2 | ip -6 -batch -
    { echo link set lo up && rules 10.77.0.1 10.77.0.2 && cable; } | ip -batch -
    devices
    ;;
again)
    # With the cable go its addresses, ways and devices.
    { echo link delete veth0 && cable; } | ip -batch -
    devices
    ;;
ways) ways | ip -batch - ;;
*)
    echo "usage: $(basename "$0") up|again|ways" >&2
    exit 2
    ;;
esac
