#!/usr/bin/env bash
# NVSHMEM_BOOTSTRAP_UID_SESSION_ID=HOST without a port is port 65535, and port 99999 is port 34463.
#
# One expects: an error, which NVSHMEM has for this variable: "please use format: <ipv4>:<port>".
# What happens: nvshmemx_get_uniqueid succeeds, and the ID that all ranks get has another port: an address without a port gets 65535, and a
#   port above 65535 is cut to 16 bits.
# What follows: jobs whose settings have no port, or -1 for "any", share port 65535 of a host. A firewall's open port is not the one used.
#
# Seen with nvidia-nvshmem-cu13 3.4.5 and 3.8.0; the ID has the socket's address from its fifth byte on. It needs no GPU.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/call.py" <<'P'
import ctypes, socket, struct, sys
library = ctypes.CDLL(sys.argv[1] + "/nvidia/nvshmem/lib/libnvshmem_host.so.3", mode=ctypes.RTLD_GLOBAL)
identity = ctypes.create_string_buffer(4096)
code = library.nvshmemx_get_uniqueid(identity)
port, address = struct.unpack_from("!H4s", identity, 6)
print("error" if code else f"{socket.inet_ntoa(address)}:{port}", flush=True)
P
for release in 3.4.5 3.8.0; do
    python3 -m pip install --quiet --no-deps --target "$folder/$release" "nvidia-nvshmem-cu13==$release" 2>/dev/null
    seen=$(for value in 127.0.0.1:5000 127.0.0.1 127.0.0.1:99999 127.0.0.1:-1 x.invalid; do
        # shellcheck disable=SC2016
        echo "$value: $(NVSHMEM_BOOTSTRAP_UID_SESSION_ID=$value LD_LIBRARY_PATH="$folder/$release/nvidia/nvshmem/lib" \
            unshare --user --map-root-user --net sh -c 'ip link set lo up && exec python3 "$1" "$2"' sh "$folder/call.py" "$folder/$release" 2>/dev/null | tail -1)"
    done)
    compare "nvidia-nvshmem-cu13 $release" "$seen" "127.0.0.1:5000: 127.0.0.1:5000
127.0.0.1: 127.0.0.1:65535
127.0.0.1:99999: 127.0.0.1:34463
127.0.0.1:-1: 127.0.0.1:65535
x.invalid: error"
done
exit "$status"
