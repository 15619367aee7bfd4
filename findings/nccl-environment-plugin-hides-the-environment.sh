#!/usr/bin/env bash
# An environment plugin of NCCL that knows nothing of a variable hides it: NULL means "not set", not "ask the environment". NCCL_DEBUG is
# an exception: of it, NCCL asks the environment alone.
#
# One expects: a plugin that provides three settings of a site answers NULL for all other names. NCCL then reads these from the
#   environment or its configuration file. The plugin may also set NCCL_DEBUG.
# What happens: with a plugin, NCCL asks it alone. A user's NCCL_NET_PLUGIN has no effect, whether a variable or a line of a configuration
#   file, and NCCL_SOCKET_IFNAME is asked of the plugin as well. No message says so. For a value of the plugin, the log says "set by
#   environment". The plugin is not asked for NCCL_DEBUG, NCCL_DEBUG_FILE and NCCL_DEBUG_SUBSYS.
# What follows: a plugin must return getenv(name) for what it does not set itself. A libnccl-env.so in the library path counts even if
#   NCCL_ENV_PLUGIN is not set: look for "ENV/Plugin: Using" in the log, if a variable has no effect.
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the function that chooses the network.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cc -shared -fPIC -w -o "$folder/net.so" "$here/plugin.c"
cat >"$folder/site.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* Knows the one variable SITE_NAME, whose value is SITE_VALUE. Notes what it is asked in ASKED. */
static int nothing(void) { return 0; }
static const char *get(const char *name) {
  FILE *asked = fopen(getenv("ASKED"), "a");
  fprintf(asked, "%s\n", name);
  fclose(asked);
  const char *known = getenv("SITE_NAME");
  return known && !strcmp(name, known) ? getenv("SITE_VALUE") : NULL;
}
const void *ncclEnvPlugin_v1[] = {"Site", nothing, nothing, get};
const void *ncclEnvPlugin_v2[] = {"Site", nothing, nothing, get};
C
mkdir "$folder/libraries"
cc -shared -fPIC -w -o "$folder/libraries/libnccl-env.so" "$folder/site.c"
cat >"$folder/choose.py" <<'P'
import ctypes, sys
from nccl import Nccl

Nccl(sys.argv[1]).function("ncclNetInit", ctypes.c_int, ctypes.c_void_p)(ctypes.create_string_buffer(8 << 20))
P
echo "NCCL_NET_PLUGIN=$folder/net.so" >"$folder/nccl.conf"
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    choose() {
        : >"$folder/asked"
        env -u NCCL_NET_PLUGIN -u NCCL_DEBUG ASKED="$folder/asked" NCCL_SOCKET_IFNAME=lo "$@" python3 "$folder/choose.py" "$(nccl_library "$release")"
    }
    chosen() { choose NCCL_DEBUG=INFO "$@" | sed -n 's/.*Assigned NET plugin \(.*\) to comm/\1/p; s/.*NCCL_NET_PLUGIN \(set by [a-z]*\) to .*/\1:/p' | xargs; }
    site=LD_LIBRARY_PATH=$folder/libraries
    seen="no environment plugin
variable: $(chosen "NCCL_NET_PLUGIN=$folder/net.so")
file: $(chosen "NCCL_CONF_FILE=$folder/nccl.conf")
an environment plugin that does not know it
variable: $(chosen "$site" "NCCL_NET_PLUGIN=$folder/net.so")
file: $(chosen "$site" "NCCL_CONF_FILE=$folder/nccl.conf")
one that knows it
$(chosen "$site" SITE_NAME=NCCL_NET_PLUGIN "SITE_VALUE=$folder/net.so")
NCCL_DEBUG
of the plugin: $(choose "$site" SITE_NAME=NCCL_DEBUG SITE_VALUE=INFO)
of the environment: $(choose "$site" NCCL_DEBUG=INFO | sed -n 's/.*NCCL INFO \(Assigned.*\)/\1/p')
asked: $(grep -E 'DEBUG|IFNAME' "$folder/asked" | sort -u | xargs)"
    compare "NCCL $release" "$seen" "no environment plugin
variable: set by environment: Plugin
file: set by environment: Plugin
an environment plugin that does not know it
variable: Socket
file: Socket
one that knows it
set by environment: Plugin
NCCL_DEBUG
of the plugin: 
of the environment: Assigned NET plugin Socket to comm
asked: NCCL_SOCKET_IFNAME"
done
exit "$status"
