#!/usr/bin/env bash
# NCCL 2.28 and 2.29 forget NCCL_NET_PLUGIN when the last communicator is destroyed. The next communicator uses TCP, and all calls return
# success.
#
# One expects: a process that destroys its communicators and makes new ones, as a training that starts again does, uses the same network.
# What happens: from 2.28 on, NCCL unloads a plugin with its last communicator. Up to 2.29 it clears the plugin's name too. For the next
#   communicator NCCL looks for libnccl-net.so, whatever NCCL_NET_PLUGIN is, and then takes the built-in InfiniBand transport or sockets.
#   NCCL_DEBUG=WARN shows nothing. 2.30 keeps the name and loads the plugin again.
# What follows: with these releases set NCCL_NET_PLUGIN_REF_COUNT=1, which keeps the plugin loaded, or install it as libnccl-net.so where
#   the loader finds it. With NCCL_NET set to the plugin's name, the loss is an error. A plugin can help itself: if its soname is
#   libnccl-net.so and it is linked with `-z nodelete`, the loader finds it in the process under the name that NCCL looks for.
#
# Seen with nvidia-nccl-cu12 2.28.9 (PyTorch 2.11's) and 2.32.3, by the functions that choose and release the network. By their sources,
# 2.28.3 to 2.29.7 do so; 2.27 keeps plugins loaded.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cc -shared -fPIC -w -o "$folder/plugin.so" "$here/plugin.c"
cc -shared -fPIC -w -Wl,-soname,libnccl-net.so -Wl,-z,nodelete -o "$folder/resident.so" "$here/plugin.c"
cat >"$folder/again.py" <<'P'
import ctypes, sys
from nccl import Nccl

nccl = Nccl(sys.argv[1])
choose, give_back = (nccl.function(name, ctypes.c_int, ctypes.c_void_p) for name in ("ncclNetInit", "ncclNetFinalize"))
results = []
for _ in range(3):
    communicator = ctypes.create_string_buffer(8 << 20)
    results += [choose(communicator), give_back(communicator)]
ctypes.CDLL(None).fflush(None)
print(f"results {results}, last error {nccl.last_error()!r}")
P
for release in 2.28.9 2.32.3; do
    nccl_get "$release"
    run() { env NCCL_SOCKET_IFNAME=lo "$@" python3 "$folder/again.py" "$(nccl_library "$release")"; }
    seen=$(for setting in "plugin 0" "plugin 1" "resident 0"; do
        settings=("NCCL_NET_PLUGIN=$folder/${setting% *}.so" "NCCL_NET_PLUGIN_REF_COUNT=${setting#* }")
        chosen=$(run NCCL_DEBUG=INFO "${settings[@]}" | sed -n 's/.*Assigned NET plugin \(.*\) to comm/\1/p' | xargs)
        echo "${setting% *}.so, count ${setting#* }: $chosen; $(run NCCL_DEBUG=WARN "${settings[@]}" | grep -v 'NCCL version')"
    done)
    case $release in 2.28.9) again="Socket Socket" ;; *) again="Plugin Plugin" ;; esac
    compare "NCCL $release" "$seen" \
        "plugin.so, count 0: Plugin $again; results [0, 0, 0, 0, 0, 0], last error ''
plugin.so, count 1: Plugin Plugin Plugin; results [0, 0, 0, 0, 0, 0], last error ''
resident.so, count 0: Plugin Plugin Plugin; results [0, 0, 0, 0, 0, 0], last error ''"
done
exit "$status"
