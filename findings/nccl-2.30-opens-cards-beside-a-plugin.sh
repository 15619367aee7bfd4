#!/usr/bin/env bash
# NCCL 2.30.7 and later releases open every RDMA device with their built-in InfiniBand transport, although a network plugin carries the data.
#
# One expects: if NCCL chooses a plugin, it does not start the built-in transport. A line "NET/IB : Using" names what carries the data.
# What happens: after choosing the network, NCCL looks for one-sided operations (RMA). If the plugin has no table for them, NCCL asks the
#   built-in transport. This opens each device, queries it, and writes its own line "NET/IB : Using …". 2.28.9 has no such step.
# What follows: that line beside "Assigned NET plugin" does not mean that the plugin was lost. Each process opens each device twice. A device
#   that does not work with the built-in transport logs warnings in jobs that do not use that transport.
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3 on libibverbs and libmlx5 of rdma-core 44.0, with a stand-in for the kernel's side
# that has a ConnectX. The script calls functions that ncclCommInitRank calls in turn, with a plugin that has a network's table alone. By
# their sources, 2.29.7 to 2.30.4 do the same in another function; this was not run.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cc -shared -fPIC -w -o "$folder/plugin.so" "$here/plugin.c"
cat >"$folder/beside.py" <<'P'
import ctypes, os, sys
from nccl import Nccl

nccl = Nccl(sys.argv[1])
communicator = ctypes.create_string_buffer(8 << 20)


def opened() -> int:
    """How many descriptors stand for the device."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}") == "/dev/zero"
        except OSError:
            pass
    return count


for step in ("ncclNetInit", "ncclRmaInit"):
    try:
        result = nccl.function(step, ctypes.c_int, ctypes.c_void_p)(communicator)
    except LookupError:
        print(f"{step}: there is none")
        continue
    ctypes.CDLL(None).fflush(None)
    print(f"{step}: result {result}, devices open: {opened()}")
P
verbs_get bookworm 44.0-2
# The libraries of rdma-core alone: the program's C library stays the machine's.
mkdir "$folder/libraries"
cp -L "$folder"/bookworm/tree/usr/lib/*-linux-gnu/{libibverbs.so.1,libmlx5.so.1,libnl-3.so.200,libnl-route-3.so.200} "$folder/libraries"
cp -L "$folder"/bookworm/tree/usr/lib/*-linux-gnu/libibverbs/libmlx5-rdmav34.so "$folder/libraries"
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    seen=$(env CARD=mlx5 SYSFS_PATH="$folder/bookworm/tree/card/mlx5" LD_PRELOAD="$folder/bookworm/tree/card/card.so" RDMAV_DRIVERS=mlx5 \
        LD_LIBRARY_PATH="$folder/libraries" NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=lo NCCL_NET_PLUGIN="$folder/plugin.so" \
        python3 "$folder/beside.py" "$(nccl_library "$release")" 2>/dev/null | sed -n 's/.*\(Assigned NET plugin.*\)/\1/p; /^ncclNet/p; /^ncclRma/p')
    case $release in 2.28.9) rma="there is none" ;; *) rma="result 0, devices open: 1" ;; esac
    compare "NCCL $release" "$seen" "Assigned NET plugin Plugin to comm
ncclNetInit: result 0, devices open: 0
ncclRmaInit: $rma"
done
exit "$status"
