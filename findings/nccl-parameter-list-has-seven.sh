#!/usr/bin/env bash
# NCCL's functions for reading its parameters know seven of them, and NCCL_BUFFSIZE or NCCL_IB_HCA are not among them.
#
# One expects: ncclParamGetAllParameterKeys lists the documented variables, and ncclParamGetParameter returns the value of each.
# What happens: the list has six keys in 2.30.7 and seven in 2.32.3, all of them about the log and threads' names. Another key returns
#   ncclInvalidArgument (4), also if the variable is set. A switch is on with 1 and true alone: 2, yes and on are off, and so is " 1".
# What follows: a program that records a job's settings by these functions misses nearly all of them. Read the environment and the
#   configuration file as well. NCCL_SET_THREAD_NAME=2 and =yes are off, and nothing says so.
#
# Seen with nvidia-nccl-cu12 2.30.7 and 2.32.3.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/parameters.py" <<'PYTHON'
import ctypes
import sys

library = ctypes.CDLL(sys.argv[1])
if len(sys.argv) == 2:
    table, length = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
    library.ncclParamGetAllParameterKeys(ctypes.byref(table), ctypes.byref(length))
    print("keys:", *sorted(table[i].decode() for i in range(length.value)))
for key in sys.argv[2:]:
    value = ctypes.c_char_p()
    result = library.ncclParamGetParameter(key.encode(), ctypes.byref(value), ctypes.byref(ctypes.c_int()))
    print(f"{key}:", result, (value.value or b"").decode())
PYTHON
for release in 2.30.7 2.32.3; do
    nccl_get "$release"
    call() { env "${@:2}" python3 "$folder/parameters.py" "$(nccl_library "$release")" ${1:+"$1"}; }
    seen="$(call "")
$(call NCCL_BUFFSIZE NCCL_BUFFSIZE=4194304)
$(call NCCL_IB_HCA NCCL_IB_HCA=mlx5_0)
$(for word in 1 true True 0 2 yes on " 1"; do echo "\"$word\": $(call NCCL_SET_THREAD_NAME NCCL_SET_THREAD_NAME="$word")"; done)"
    case $release in 2.30.7) levels="" ;; *) levels="NCCL_DEBUG_LEVELS " ;; esac
    compare "NCCL $release" "$(sed 's/ *$//' <<<"$seen")" \
        "keys: NCCL_DEBUG NCCL_DEBUG_FILE ${levels}NCCL_DEBUG_SUBSYS NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_SET_THREAD_NAME
NCCL_BUFFSIZE: 4
NCCL_IB_HCA: 4
\"1\": NCCL_SET_THREAD_NAME: 0 TRUE
\"true\": NCCL_SET_THREAD_NAME: 0 TRUE
\"True\": NCCL_SET_THREAD_NAME: 0 TRUE
\"0\": NCCL_SET_THREAD_NAME: 0 FALSE
\"2\": NCCL_SET_THREAD_NAME: 0 FALSE
\"yes\": NCCL_SET_THREAD_NAME: 0 FALSE
\"on\": NCCL_SET_THREAD_NAME: 0 FALSE
\" 1\": NCCL_SET_THREAD_NAME: 0 FALSE"
done
exit "$status"
