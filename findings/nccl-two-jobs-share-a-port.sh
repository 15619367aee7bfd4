#!/usr/bin/env bash
# Two NCCL jobs of one user with the same NCCL_COMM_ID both listen on its port, and neither notices the other.
#
# One expects: the first job's rank 0 takes the port, and rank 0 of the second fails with "Address already in use".
# What happens: NCCL sets SO_REUSEPORT on the listening socket if the port is given. Both sockets listen, and the kernel spreads the
#   connections of all ranks of both jobs over them.
# What follows: if rank 0 of an earlier job has not quite ended, or a user starts two jobs on one host, some ranks reach the other job's
#   rank 0. No line says that the port was in use. Use a port per job; `ss -ltn` shows whether two sockets listen on it.
#
# Seen with nvidia-nccl-cu12 2.21.5 and 2.32.3. The call that rank 0 makes in ncclCommInitRank, which needs a GPU, is made alone:
# bootstrapCreateRoot.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/roots.py" <<'P'
import ctypes, os, socket, sys, time
from nccl import Nccl, in_child

PORT = 29000 + os.getpid() % 1000
nccl = Nccl(sys.argv[1])


def root() -> str:
    id = ctypes.create_string_buffer(128)
    result = nccl.library.ncclGetUniqueId(id)
    return str(result or nccl.function("bootstrapCreateRoot", ctypes.c_int, ctypes.c_void_p, ctypes.c_bool)(ctypes.addressof(id), True))


def listening() -> list[int]:
    """How many connections wait at each socket that listens on the port."""
    rows = [line.split() for line in open("/proc/net/tcp").readlines()[1:]]
    return [int(row[4].split(":")[1], 16) for row in rows if row[1] == f"0100007F:{PORT:04X}" and row[3] == "0A"]


environment = {"NCCL_COMM_ID": f"127.0.0.1:{PORT}", "NCCL_SOCKET_IFNAME": "lo"}
first = os.fork()
if first == 0:
    os.environ.update(environment)
    for name, value in environment.items():
        ctypes.CDLL(None).setenv(name.encode(), value.encode(), 1)
    root()
    time.sleep(60)
while not listening():
    time.sleep(0.05)


def second() -> str:
    result = root()
    sockets = len(listening())
    connections = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(64)]
    time.sleep(0.5)
    return f"second root: result {result}; sockets that listen: {sockets}; with connections: {sum(n > 0 for n in listening())}"


print(in_child(environment, second))
os.kill(first, 9)
P
for release in 2.21.5 2.32.3; do
    nccl_get "$release"
    compare "NCCL $release" "$(python3 "$folder/roots.py" "$(nccl_library "$release")" | tail -1)" \
        "second root: result 0; sockets that listen: 2; with connections: 2"
done
exit "$status"
