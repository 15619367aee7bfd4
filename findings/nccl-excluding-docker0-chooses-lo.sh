#!/usr/bin/env bash
# NCCL_SOCKET_IFNAME=^docker0 makes NCCL choose lo. In a longer list, the seventeenth name and all after it are not excluded.
#
# One expects: an exclusion adds to what NCCL leaves out anyway, lo and docker, and each name of the list counts.
# What happens: if the variable is set, NCCL does not choose by itself. It takes the interfaces that are not excluded in the kernel's
#   order, and lo is the first. The list has 16 places. An interface whose name comes after them is used although it is excluded, and not
#   found ("no socket interface found") if it is requested. No line says so at any level.
# What follows: rank 0 announces 127.0.0.1 to hosts that cannot reach it. Write `^lo,docker0`, or name the interface that you want. A
#   prefix stands for all interfaces whose names begin with it, and counts once (`^lo,docker,veth,br-`).
#
# Seen with nvidia-nccl-cu12 2.21.5 and 2.32.3, by ncclGetUniqueId in a network of its own that has lo and a0.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/address.py" <<'P'
import ctypes, socket, sys
from nccl import Nccl, in_child

nccl = Nccl(sys.argv[1])
names = {"10.1.0.1": "a0", "127.0.0.1": "lo"}


def address() -> str:
    id = ctypes.create_string_buffer(128)
    result = nccl.library.ncclGetUniqueId(id)
    return nccl.last_error() if result else names[socket.inet_ntop(socket.AF_INET, id.raw[12:16])]


other = [f"x{number}" for number in range(16)]
for name, setting in (
    ("unset", None),
    ("^docker0", "^docker0"),
    ("^lo,docker0", "^lo,docker0"),
    ("^lo, 14 others, a0", "^" + ",".join(["lo", *other[:14], "a0"])),
    ("^lo, 15 others, a0", "^" + ",".join(["lo", *other[:15], "a0"])),
    ("15 others, a0", ",".join([*other[:15], "a0"])),
    ("16 others, a0", ",".join([*other, "a0"])),
):
    print(f"{name}: {in_child({'NCCL_SOCKET_IFNAME': setting} if setting else {}, address)}")
P
cat >"$folder/network.sh" <<'S'
ip link set lo up
ip link add a0 type veth peer name a1
ip address add 10.1.0.1/24 dev a0
ip link set a0 up
ip link set a1 up
# The other end has no address then.
echo 1 >/proc/sys/net/ipv6/conf/a1/disable_ipv6
python3 "$1/address.py" "$2"
S
for release in 2.21.5 2.32.3; do
    nccl_get "$release"
    none="Bootstrap : no socket interface found"
    compare "NCCL $release" "$(unshare --user --map-root-user --net sh "$folder/network.sh" "$folder" "$(nccl_library "$release")")" \
        "unset: a0
^docker0: lo
^lo,docker0: a0
^lo, 14 others, a0: $none
^lo, 15 others, a0: a0
15 others, a0: a0
16 others, a0: $none"
done
exit "$status"
