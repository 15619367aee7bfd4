#!/usr/bin/env bash
# If a profiler plugin's init fails, NCCL says "Continue without profiler". It continues with it. From 2.30 on, the end of that communicator
# closes the plugin for all others.
#
# One expects: a communicator whose init failed has no profiler, so that no event and no finalize come with its context. The profiler of
#   the other communicators works on.
# What happens: creating the communicator succeeds. Its events come, with whatever init wrote as the context, and so does finalize. From
#   2.30 on, finalize of the failed communicator is the last call of all: NCCL closes the plugin, other communicators lose their events, and
#   finalize never comes for them. A profiler that writes its file in finalize writes nothing.
# What follows: init of a profiler should never return an error. It should return success with a context that ignores events. A plugin that
#   fails anyway must write a context that its other functions can bear.
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the functions that begin and end a communicator's profiler, and the one that
# reports ProxyCtrl events.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cc -shared -fPIC -w -o "$folder/profiler.so" "$here/profiler.c"
cat >"$folder/fail.py" <<'P'
import sys
from profiled import Profiled

communicators = Profiled(sys.argv[1], 2)
begin, event, end = communicators.begin, communicators.event, communicators.end
for call, index in ((begin, 0), (begin, 1), (event, 0), (event, 1), (end, 1), (event, 0), (end, 0)):
    call(index)
P
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    run() { env MASKS=11 NCCL_PROFILER_PLUGIN="$folder/profiler.so" "$@" python3 "$folder/fail.py" "$(nccl_library "$release")"; }
    seen="both succeed: $(run | xargs)
the second fails: $(run FAILS_AT=1 | xargs)
log: $(run FAILS_AT=1 NCCL_DEBUG=INFO | sed -n 's/.*\(Continue without profiler\).*/\1/p')"
    both="init of 0, init of 1, event of 0, event of 1, finalize of 1, event of 0, finalize of 0,"
    case $release in 2.28.9) second=$both ;; *) second="init of 0, init of 1, event of 0, event of 1, finalize of 1," ;; esac
    compare "NCCL $release" "$seen" "both succeed: $both
the second fails: $second
log: Continue without profiler"
done
exit "$status"
