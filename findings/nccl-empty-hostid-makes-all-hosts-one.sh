#!/usr/bin/env bash
# NCCL_HOSTID="" is not unset: all hosts that have it get the same identity, whatever their names are.
#
# One expects: an empty value leaves the default, which tells hosts apart by their names.
# What happens: NCCL takes the hash of the empty string, so two hosts of different names have one hash. The value is compared byte by byte: a blank
#   at the end and capitals make another host.
# What follows: the number that says which ranks share a host is the same on all hosts. An image or a scheduler that sets NCCL_HOSTID="" to undo a value
#   does not undo it: unset it. A value with a stray blank divides one host into two.
#
# Seen with nvidia-nccl-cu12 2.21.5, 2.28.9, 2.30.7 and 2.32.3, by the function that computes the hash. Two UTS namespaces stand in for two
# hosts; what NCCL does with GPUs then was not run.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/host.py" <<'PYTHON'
import ctypes
import sys

from nccl import Nccl

print(hex(Nccl(sys.argv[1]).function("getHostHash", ctypes.c_uint64)()))
PYTHON
for release in 2.21.5 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    # hash NAME [VARIABLE]: the hash of a host of that name.
    hash() {
        # shellcheck disable=SC2016
        env -u NCCL_HOSTID "${@:2}" unshare --user --map-root-user --uts sh -c 'hostname "$1" && exec python3 "$2" "$3"' \
            sh "$1" "$folder/host.py" "$(nccl_library "$release")"
    }
    same() { if [ "$1" = "$2" ]; then echo one host; else echo two hosts; fi; }
    seen="unset: $(same "$(hash a)" "$(hash b)")
\"\": $(same "$(hash a NCCL_HOSTID=)" "$(hash b NCCL_HOSTID=)")
\"x\" and \"x\": $(same "$(hash a NCCL_HOSTID=x)" "$(hash b NCCL_HOSTID=x)")
\"x\" and \"x \": $(same "$(hash a NCCL_HOSTID=x)" "$(hash a "NCCL_HOSTID=x ")")
\"x\" and \"X\": $(same "$(hash a NCCL_HOSTID=x)" "$(hash a NCCL_HOSTID=X)")"
    compare "NCCL $release" "$seen" 'unset: two hosts
"": one host
"x" and "x": one host
"x" and "x ": two hosts
"x" and "X": two hosts'
done
exit "$status"
