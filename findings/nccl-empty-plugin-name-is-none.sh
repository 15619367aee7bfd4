#!/usr/bin/env bash
# NCCL_NET_PLUGIN="" is not NCCL_NET_PLUGIN unset: from 2.28 on, the empty value means no plugin at all, also not libnccl-net.so.
#
# One expects: an empty variable counts as absent, so that it undoes what an image has set (ENV NCCL_NET_PLUGIN=…), and the default
#   libnccl-net.so is loaded.
# What happens: unset, NCCL loads libnccl-net.so from the library path. Empty, it loads none and uses its own transports. `none` alone means the
#   same, but in a list it means nothing: `none,x` loads libnccl-net-x.so. A blank belongs to the name: " x" is no plugin.
# What follows: Kubernetes cannot unset a variable of the image, and `value: ""` disables the default plugin without a message. Name the plugin
#   instead: NCCL_NET_PLUGIN=libnccl-net.so. Set NCCL_NET to its name too; another network is an error then.
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the function that chooses the network.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

mkdir "$folder/libraries"
cc -shared -fPIC -w -o "$folder/libraries/libnccl-net.so" "$here/plugin.c"
cp "$folder/libraries/libnccl-net.so" "$folder/libraries/libnccl-net-x.so"
cat >"$folder/choose.py" <<'P'
import ctypes, sys
from nccl import Nccl

Nccl(sys.argv[1]).function("ncclNetInit", ctypes.c_int, ctypes.c_void_p)(ctypes.create_string_buffer(8 << 20))
P
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    chosen() {
        env -u NCCL_NET_PLUGIN NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO LD_LIBRARY_PATH="$folder/libraries" "$@" python3 "$folder/choose.py" "$(nccl_library "$release")" |
            sed -n 's/.*Assigned NET plugin \(.*\) to comm/\1/p'
    }
    seen="unset: $(chosen)
$(for value in "" none libnccl-net.so x none,x " x"; do echo "\"$value\": $(chosen "NCCL_NET_PLUGIN=$value")"; done)"
    compare "NCCL $release" "$seen" 'unset: Plugin
"": Socket
"none": Socket
"libnccl-net.so": Plugin
"x": Plugin
"none,x": Plugin
" x": Socket'
done
exit "$status"
