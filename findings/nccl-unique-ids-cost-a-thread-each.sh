#!/usr/bin/env bash
# Each ncclGetUniqueId that nobody uses leaves a thread and a listening socket in the process until it ends.
#
# One expects: the call makes an identifier, which costs nothing until it is used for a communicator.
# What happens: each call binds a socket to the address in the identifier and starts a thread that waits for the ranks. No function
#   releases an identifier. The address is that of the first interface at that time, and the port is random.
# What follows: call it on one rank per communicator. A program that calls it on each rank and uses one result, or makes identifiers in
#   advance, uses one descriptor and one thread for each. A firewall between the hosts must admit ports that are known only at run time,
#   unless NCCL_COMM_ID is set. Then the call makes neither, and all identifiers have the same address.
#
# Seen with nvidia-nccl-cu12 2.21.5 and 2.32.3.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/ids.py" <<'P'
import ctypes, os, sys, time
from nccl import Nccl, in_child

nccl = Nccl(sys.argv[1])


def count() -> tuple[int, int]:
    sockets = 0
    for descriptor in range(4096):
        try:
            sockets += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except OSError:
            pass
    return len(os.listdir("/proc/self/task")), sockets


def hundred() -> str:
    id = ctypes.create_string_buffer(128)
    nccl.library.ncclGetUniqueId(id)  # once for what is made once
    before = count()
    addresses = set()
    for _ in range(100):
        nccl.library.ncclGetUniqueId(id)
        addresses.add(id.raw[8:16])
    time.sleep(1)
    after = count()
    return f"{after[0] - before[0]} threads, {after[1] - before[1]} sockets, {len(addresses)} addresses"


print("100 more:", in_child({"NCCL_SOCKET_IFNAME": "lo"}, hundred))
print("100 more with NCCL_COMM_ID:", in_child({"NCCL_SOCKET_IFNAME": "lo", "NCCL_COMM_ID": "127.0.0.1:29999"}, hundred))
P
for release in 2.21.5 2.32.3; do
    nccl_get "$release"
    compare "NCCL $release" "$(python3 "$folder/ids.py" "$(nccl_library "$release")")" \
        "100 more: 100 threads, 100 sockets, 100 addresses
100 more with NCCL_COMM_ID: 0 threads, 0 sockets, 1 addresses"
done
exit "$status"
