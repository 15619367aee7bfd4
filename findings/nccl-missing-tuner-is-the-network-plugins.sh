#!/usr/bin/env bash
# If the file in NCCL_TUNER_PLUGIN or NCCL_PROFILER_PLUGIN does not exist, NCCL takes the network plugin's tuner or profiler.
#
# One expects: a named file that is missing is an error, or NCCL runs without a tuner. That is what happens if the file exists but has no
#   table that the release knows.
# What happens: NCCL looks for the table in the network plugin's file, and uses what it finds there. NCCL_DEBUG=WARN shows nothing. For
#   these two variables, an empty value counts as unset, unlike that of NCCL_NET_PLUGIN. `none` alone switches the plugins off.
# What follows: a misspelt path measures another tuner, or NCCL's own, as the one that was named. Of two profilers, the wrong one writes.
#   With NCCL_DEBUG=INFO, look at the names in "TUNER/Plugin: Using" and "PROFILER/Plugin: Loaded".
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the functions that choose the network, the tuner and the profiler.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/tables.c" <<'C'
/* A tuner and a profiler that say their names. */
#include <stdio.h>
static int ready(void **context) { *context = &ready; return 0; }
static int nothing(void) { return 0; }
#define TUNER {NAME " tuner", ready, nothing, nothing, nothing}
#define PROFILER {NAME " profiler", ready, nothing, nothing, nothing, nothing}
const void *ncclTunerPlugin_v5[] = TUNER, *ncclTunerPlugin_v6[] = TUNER;
const void *ncclProfiler_v5[] = PROFILER, *ncclProfiler_v6[] = PROFILER, *ncclProfiler_v7[] = PROFILER;
C
cc -shared -fPIC -w -DNAME='"network'"'"'s"' -o "$folder/network.so" "$here/plugin.c" "$folder/tables.c"
cc -shared -fPIC -w -DNAME='"own"' -o "$folder/own.so" "$folder/tables.c"
cc -shared -fPIC -w -o "$folder/empty.so" -x c /dev/null
cat >"$folder/load.py" <<'P'
import ctypes, sys
from nccl import Nccl

nccl = Nccl(sys.argv[1])
communicator = ctypes.create_string_buffer(8 << 20)
for step in ("ncclNetInit", "ncclTunerPluginLoad", "ncclProfilerPluginInit"):
    result = nccl.function(step, ctypes.c_int, ctypes.c_void_p)(communicator)
    if result:
        print(f"{step}: result {result}")
P
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    load() {
        env -u NCCL_TUNER_PLUGIN -u NCCL_PROFILER_PLUGIN -u NCCL_DEBUG_SUBSYS NCCL_SOCKET_IFNAME=lo NCCL_NET_PLUGIN="$folder/network.so" "$@" \
            python3 "$folder/load.py" "$(nccl_library "$release")"
    }
    seen=$(for value in unset "" none own.so empty.so missing.so; do
        case $value in
        unset) named=() ;;
        *.so) named=(NCCL_{TUNER,PROFILER}_PLUGIN="$folder/$value") ;;
        *) named=(NCCL_{TUNER,PROFILER}_PLUGIN="$value") ;;
        esac
        echo "\"$value\": $(load NCCL_DEBUG=INFO "${named[@]}" | sed -n 's/.*\(TUNER\|PROFILER\).Plugin: \(Using\|Loaded\) \(.*\) (v.)/\3,/p' |
            xargs -d '\n')"
    done)
    seen+=$'\n'"missing.so, NCCL_DEBUG=WARN: $(load NCCL_DEBUG=WARN NCCL_{TUNER,PROFILER}_PLUGIN="$folder/missing.so" | grep -v 'NCCL version' || true)"
    compare "NCCL $release" "$seen" "\"unset\": network's tuner, network's profiler,
\"\": network's tuner, network's profiler,
\"none\": 
\"own.so\": own tuner, own profiler,
\"empty.so\": 
\"missing.so\": network's tuner, network's profiler,
missing.so, NCCL_DEBUG=WARN: "
done
exit "$status"
