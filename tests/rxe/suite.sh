#!/bin/bash
# In the virtual machine: runs every test that the file `tests` names, one after the other, each on a fresh network.
#
#   suite.sh PROGRAM    a test program of Rust's; leaves TEST.log and TEST.status in the working directory
set -uo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Of one test, in seconds: it ends what hangs. The longest one takes half a minute on a machine that does nothing else.
LIMIT=300

while read -r name <&3; do
    start=$(date +%s%N)
    dmesg --clear
    status=0
    {
        "$HERE/network.sh" again &&
            RXE_GUEST=1 timeout --signal KILL "$LIMIT" "$1" --exact "$name" --nocapture --test-threads 1
    } >"$name.log" 2>&1 || status=$?
    if [ "$status" != 0 ]; then
        { echo "--- status $status (137: no end within $LIMIT s); the kernel's log:" && dmesg; } >>"$name.log"
    fi
    echo "$status" >"$name.status"
    printf 'rxe: %-36s %3d.%d s\n' "$name" $((($(date +%s%N) - start) / 1000000000)) \
        $((($(date +%s%N) - start) / 100000000 % 10))
done 3<tests
