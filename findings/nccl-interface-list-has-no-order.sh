#!/usr/bin/env bash
# NCCL_SOCKET_IFNAME=b0,a0 is a set of interfaces, not an order: NCCL takes whichever the kernel lists first. Older releases take one that
# is down.
#
# One expects: the first name that exists is taken; the second is for hosts that lack the first. An interface that is down is left out.
# What happens: NCCL goes through the kernel's list, in the order in which the interfaces were made, and takes what matches any name. Up
#   to 2.27 it does so whether or not the interface is up. From 2.28 on it skips an interface that is down, and a name that older releases
#   took is then an error. A blank after a comma belongs to the name: nothing matches ` b0` in `x, b0`.
# What follows: one list for all hosts gives different networks on hosts whose interfaces were made in another order. Name one interface
#   per host, exactly (`=b0`). With releases up to 2.27, an address on an interface without a cable is announced to all ranks.
#
# Seen with nvidia-nccl-cu12 2.21.5 and 2.32.3, by ncclGetUniqueId in a network of its own. a0 (10.1.0.1) is made before b0 (10.2.0.1). By
# its sources, 2.28.3 is the first release that skips an interface that is down.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/address.py" <<'P'
import ctypes, socket, sys
from nccl import Nccl, in_child

nccl = Nccl(sys.argv[1])
names = {"10.1.0.1": "a0", "10.2.0.1": "b0"}


def address() -> str:
    id = ctypes.create_string_buffer(128)
    result = nccl.library.ncclGetUniqueId(id)
    return nccl.last_error() if result else names[socket.inet_ntop(socket.AF_INET, id.raw[12:16])]


for setting in sys.argv[2:]:
    print(f"{setting}: {in_child({'NCCL_SOCKET_IFNAME': setting} if setting != 'unset' else {}, address)}")
P
cat >"$folder/network.sh" <<'S'
ip link set lo up
for name in a b; do ip link add ${name}0 type veth peer name ${name}1; done
ip address add 10.1.0.1/24 dev a0
ip address add 10.2.0.1/24 dev b0
for name in a0 a1 b0 b1; do ip link set $name up; done
python3 "$1/address.py" "$2" b0,a0 =b0,a0 "x, b0"
ip link set a0 down
echo "a0 is down:"
python3 "$1/address.py" "$2" unset =a0 a0,b0
S
for release in 2.21.5 2.32.3; do
    nccl_get "$release"
    none="Bootstrap : no socket interface found"
    case $release in 2.21.5) down="a0 a0 a0" ;; *) down="b0 none b0" ;; esac
    read -r unset exact list <<<"$down"
    compare "NCCL $release" "$(unshare --user --map-root-user --net sh "$folder/network.sh" "$folder" "$(nccl_library "$release")")" \
        "b0,a0: a0
=b0,a0: a0
x, b0: $none
a0 is down:
unset: $unset
=a0: ${exact/none/$none}
a0,b0: $list"
done
exit "$status"
