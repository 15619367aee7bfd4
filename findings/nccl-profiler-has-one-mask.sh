#!/usr/bin/env bash
# A profiler plugin writes its event mask in the init of each communicator, but NCCL has one mask for all. The last init counts.
#
# One expects: the mask that init writes is that communicator's, as the context is, which init writes too.
# What happens: each init gets the same address. A plugin that requests events for the first communicator and none for the second gets
#   none of both from then on. If it requests none for the first, it gets that one's events as soon as the second has been created.
# What follows: a plugin that profiles some communicators has to request their events in each init, and ignore those with another context.
#   An init that writes 0 ends the profiling of the whole process.
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the functions that begin and end a communicator's profiler, and the one that
# reports ProxyCtrl events.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cc -shared -fPIC -w -o "$folder/profiler.so" "$here/profiler.c"
cat >"$folder/mask.py" <<'P'
import sys
from profiled import Profiled

communicators = Profiled(sys.argv[1], 2)
begin, event = communicators.begin, communicators.event
for call, index in ((begin, 0), (event, 0), (begin, 1), (event, 0), (event, 1)):
    call(index)
P
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    seen=$(for masks in 11 10 01; do
        echo "masks $masks: $(env MASKS=$masks NCCL_PROFILER_PLUGIN="$folder/profiler.so" python3 "$folder/mask.py" "$(nccl_library "$release")" | xargs)"
    done)
    compare "NCCL $release" "$seen" "masks 11: init of 0, event of 0, init of 1, event of 0, event of 1,
masks 10: init of 0, event of 0, init of 1,
masks 01: init of 0, init of 1, event of 0, event of 1,"
done
exit "$status"
