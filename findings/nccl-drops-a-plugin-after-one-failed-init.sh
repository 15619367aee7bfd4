#!/usr/bin/env bash
# If a network plugin fails for one communicator, NCCL does not use it again in that process. It uses TCP instead and returns success.
#
# One expects: if a plugin worked for the first communicator and its init fails for the second, creating the second fails, or at least the
#   third asks the plugin again.
# What happens: from 2.28 on, NCCL calls init for each communicator. One failure, for example for lack of memory, disables the plugin for
#   good. The second and all later communicators get the built-in InfiniBand transport or sockets, with ncclSuccess. NCCL_DEBUG=WARN shows
#   nothing, and ncclGetLastError is empty.
# What follows: ranks of one communicator may choose different networks, or a job is slow from its second communicator on. A plugin must
#   not fail init for a cause that may pass. Users should set NCCL_NET to the plugin's name, which makes it an error.
#
# Seen with nvidia-nccl-cu12 2.28.9 and 2.32.3, by the function that chooses the network, which gets three communicators in turn.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cc -shared -fPIC -w -o "$folder/plugin.so" "$here/plugin.c"
cat >"$folder/choose.py" <<'P'
import ctypes, sys
from nccl import Nccl

nccl = Nccl(sys.argv[1])
choose = nccl.function("ncclNetInit", ctypes.c_int, ctypes.c_void_p)
results = [choose(ctypes.create_string_buffer(8 << 20)) for _ in range(3)]
ctypes.CDLL(None).fflush(None)
print(f"results {results}, last error {nccl.last_error()!r}")
P
for release in 2.28.9 2.32.3; do
    nccl_get "$release"
    run() { env NCCL_SOCKET_IFNAME=lo NCCL_NET_PLUGIN="$folder/plugin.so" "$@" python3 "$folder/choose.py" "$(nccl_library "$release")"; }
    seen=$(for failure in FAILS_AT={none,1,2}; do
        chosen=$(run NCCL_DEBUG=INFO "$failure" | sed -n 's/.*Assigned NET plugin \(.*\) to comm/\1/p' | xargs)
        echo "$failure: $chosen; $(run NCCL_DEBUG=WARN "$failure" | grep -v 'NCCL version' | xargs -0)"
    done)
    compare "NCCL $release" "$seen" \
        "FAILS_AT=none: Plugin Plugin Plugin; results [0, 0, 0], last error ''
FAILS_AT=1: Socket Socket Socket; results [0, 0, 0], last error ''
FAILS_AT=2: Plugin Socket Socket; results [0, 0, 0], last error ''"
done
exit "$status"
