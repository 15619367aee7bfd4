#!/bin/bash
# The network of the virtual machine: rxe0 on veth0 (10.77.0.1), rxe1 on veth1 (10.77.0.2), the two ends of one cable.
#
#   network.sh up      makes it
#   network.sh again   makes it from scratch, whatever has been done to it
#   network.sh card    makes the devices two ports of one card: one image GUID, and links to two functions of a PCI device
#   network.sh ways    lays the ways between its addresses anew, which a link that goes down loses
set -euo pipefail

SYSFS=/sys/devices/virtual/infiniband

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

# The image GUID is made from the address that the interface has at that moment. rxe has no PCI device, so sysfs gets one from
# an overlay.
card() {
    rdma link delete rxe1
    ip link set veth1 address 02:00:00:00:77:01
    rdma link add rxe1 type rxe netdev veth1
    ip link set veth1 address 02:00:00:00:77:02
    local number layer
    mkdir -p /run/card
    mount -t tmpfs card /run/card
    for number in 0 1; do
        layer=/run/card/$number
        mkdir -p "$layer/upper" "$layer/work" "/run/card/0000:00:09.$number"
        ln -s "/run/card/0000:00:09.$number" "$layer/upper/device"
        mount -t overlay -o "lowerdir=$SYSFS/rxe$number,upperdir=$layer/upper,workdir=$layer/work" card "$SYSFS/rxe$number"
    done
    # The ways go with the address.
    ways | ip -batch -
}

no_card() {
    if mountpoint --quiet /run/card; then
        umount "$SYSFS/rxe0" "$SYSFS/rxe1" /run/card
    fi
}

case "${1:-}" in
up)
    echo 1 >/proc/sys/net/ipv4/conf/default/accept_local
    rules fd77::1 fd77::2 | ip -6 -batch -
    { echo link set lo up && rules 10.77.0.1 10.77.0.2 && cable; } | ip -batch -
    devices
    ;;
again)
    no_card
    # With the cable go its addresses, ways and devices.
    { echo link delete veth0 && cable; } | ip -batch -
    devices
    ;;
card) card ;;
ways) ways | ip -batch - ;;
*)
    echo "usage: $(basename "$0") up|again|card|ways" >&2
    exit 2
    ;;
esac
