#!/usr/bin/env bash
# NCCL_COMM_ID takes ports that do not exist: 70000 is 4464, no port is 65535, a name is 0.
#
# One expects: "Invalid NCCL_COMM_ID", as NCCL says of an IPv6 address without brackets.
# What happens: the text behind the colon goes through atoi and 16 bits. Without a port it is -1, and so 65535. With a word it is 0: rank 0
#   then listens on a port that the kernel chooses, and the other ranks look for it at port 0.
# What follows: a typing error either works by chance, as each rank makes the same of it, or ends in a time-out that names no setting.
#
# Seen with nvidia-nccl-cu12 2.21.5 and 2.32.3, by ncclGetUniqueId, whose answer holds the address.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/port.py" <<'P'
import ctypes, struct, sys
from nccl import Nccl, in_child

nccl = Nccl(sys.argv[1])


def port() -> str:
    id = ctypes.create_string_buffer(128)
    result = nccl.library.ncclGetUniqueId(id)
    # Behind 8 bytes of the job's secret: family, port, address.
    return f"refused ({result})" if result else str(struct.unpack_from(">H", id.raw, 10)[0])


for text in ("127.0.0.1:5000", "127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1", "127.0.0.1:http", "fd00::5:5000"):
    print(f"{text}: {in_child({'NCCL_COMM_ID': text, 'NCCL_SOCKET_IFNAME': 'lo'}, port)}")
P
for release in 2.21.5 2.32.3; do
    nccl_get "$release"
    compare "NCCL $release" "$(python3 "$folder/port.py" "$(nccl_library "$release")")" \
        "127.0.0.1:5000: 5000
127.0.0.1:70000: 4464
127.0.0.1:-1: 65535
127.0.0.1: 65535
127.0.0.1:http: 0
fd00::5:5000: refused (4)"
done
exit "$status"
