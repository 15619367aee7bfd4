#!/usr/bin/env bash
# If no address of a port is in NCCL_IB_ADDR_RANGE, NCCL's built-in transport takes the first entry of the GID table: link-local RoCE v1.
#
# One expects: an error, a line in the log, or the GID that NCCL takes without the variable.
# What happens: the search begins with entry 0, which on Linux is the link-local address with RoCE v1, and the range excludes all that is
#   better. No line says so, even at INFO. A port that has only link-local addresses gets RoCE v1 in the same way, whatever the variable. A
#   range of IPv6 has no effect unless NCCL_IB_ADDR_FAMILY is AF_INET6; that has a line at INFO. Without that variable, a port with IPv6
#   addresses alone also gets entry 0, and IPv4 with RoCE v1 comes before IPv6 with v2.
# What follows: with one range for a whole cluster, a port outside it uses another protocol than its peers. RoCE v1 is not routed, and the
#   switches' classes for RoCE v2 do not apply to it. Make sure that each port has an address in the range, or set NCCL_IB_GID_INDEX.
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the function that chooses the GID. A stand-in replaces libibverbs and the files
# in which the kernel gives the RoCE version of each entry.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/fabric.sh
. "$here/fabric.sh"

fabric_get
cat >"$folder/choose.py" <<'P'
import ctypes, struct, sys
from nccl import Nccl

nccl = Nccl(sys.argv[1])
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_open_device.restype = ctypes.c_void_p
nccl.function("wrap_ibv_symbols", ctypes.c_int)()
device = verbs.ibv_open_device(ctypes.c_void_p(verbs.ibv_get_device_list(None)[0]))
attributes, index = ctypes.create_string_buffer(64), ctypes.c_int(-1)
struct.pack_into("<4i", attributes, 0, 4, 5, 5, len(sys.argv) - 2)  # state, greatest MTU, MTU, length of the table
struct.pack_into("<B", attributes, 46, 2)  # link layer Ethernet
choose = nccl.function("ncclIbGetGidIndex", ctypes.c_int, ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p, ctypes.c_void_p)
result = choose(device, 1, attributes, ctypes.byref(index))
ctypes.CDLL(None).fflush(None)
print(f"result {result}, entry {index.value}" if result else f"entry {index.value}, {sys.argv[2:][index.value]}")
P
# choose [VARIABLE=VALUE]...: the entry that NCCL takes of the list `table`, whose elements are ADDRESS=VERSION, and what it logs.
choose() {
    local index types=$folder/types
    rm -rf "$types"
    mkdir "$types"
    for index in "${!table[@]}"; do
        case ${table[index]} in *=1) echo "IB/RoCE v1" ;; *=2) echo "RoCE v2" ;; esac >"$types/$index"
    done
    # shellcheck disable=SC2016
    env -i PATH="$PATH" PYTHONPATH="$here" LD_LIBRARY_PATH="$folder/fabric" FABRIC_GIDS="${table[*]%=?}" NCCL_DEBUG=INFO "$@" \
        unshare --user --map-root-user --mount sh -c '
            mount -t tmpfs none /sys && mkdir -p /sys/class/infiniband/fabric0/ports/1/gid_attrs &&
            cp -r "$1" /sys/class/infiniband/fabric0/ports/1/gid_attrs && shift && exec "$@"' \
        sh "$types" python3 "$folder/choose.py" "$(nccl_library "$release")" "${table[@]}" |
        grep -vE 'NCCL version|ENV/Plugin|set by environment|ncclOsDlopen' | sed 's/.* NCCL INFO //' | sort | xargs -d '\n'
}
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    table=(fe80::1={1,2} ::ffff:192.0.2.1={1,2} ::ffff:198.51.100.1={1,2} 2001:db8::1={1,2})
    seen=$(
        echo "no range: $(choose)"
        for range in 198.51.100.0/24 203.0.113.0/24 2001:db8::/32; do echo "$range: $(choose "NCCL_IB_ADDR_RANGE=$range")"; done
        for range in 2001:db8::/32 198.51.100.0/24; do
            echo "$range, AF_INET6: $(choose "NCCL_IB_ADDR_RANGE=$range" NCCL_IB_ADDR_FAMILY=AF_INET6)"
        done
        table=(fe80::1={1,2})
        echo "link-local addresses alone: $(choose)"
        table=(fe80::1={1,2} 2001:db8::1={1,2})
        echo "IPv6 alone: $(choose)"
        table=(fe80::1={1,2} ::ffff:192.0.2.1=1 2001:db8::1=2)
        echo "IPv4 with v1, IPv6 with v2: $(choose)"
    )
    compare "NCCL $release" "$seen" "no range: entry 3, ::ffff:192.0.2.1=2
198.51.100.0/24: entry 5, ::ffff:198.51.100.1=2
203.0.113.0/24: entry 0, fe80::1=1
2001:db8::/32: NET/IB: Ip address '2001:db8::' is invalid for family AF_INET, ignoring address entry 3, ::ffff:192.0.2.1=2
2001:db8::/32, AF_INET6: entry 7, 2001:db8::1=2
198.51.100.0/24, AF_INET6: NET/IB: Ip address '198.51.100.0' is invalid for family AF_INET6, ignoring address entry 7, 2001:db8::1=2
link-local addresses alone: entry 0, fe80::1=1
IPv6 alone: entry 0, fe80::1=1
IPv4 with v1, IPv6 with v2: entry 2, ::ffff:192.0.2.1=1"
done
exit "$status"
