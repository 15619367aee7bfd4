#!/usr/bin/env bash
# NCCL reads NCCL_BUFFSIZE=8M as 8 bytes and NCCL_IB_TIMEOUT=08 as 0, and no release refuses them.
#
# One expects: a number with a unit is understood or refused, and a leading zero means nothing.
# What happens: NCCL reads numbers as C reads them in source code, up to the first other character. 8M, 8MiB and 8,388,608 are 8; 1e6 is
#   1. A leading zero makes the number octal: 022 is 18, and 08 is 0. For InfiniBand's timeout, 0 means no limit. In releases up to 2.30 a
#   word is 0: NCCL_IB_TIMEOUT=default is no limit. 2.32.3 takes the default instead, and still reads 8M and 08 so. NCCL_IB_DISABLE=true
#   changes nothing in either. Only level INFO shows what was read: "NCCL_BUFFSIZE set by environment to 8."
# What follows: write plain decimal numbers, and check the lines "set by environment" once. A plugin that reads these variables strictly
#   refuses values with which the same job ran so far, on another setting than its owner believes.
#
# Seen with nvidia-nccl-cu12 2.21.5 and 2.32.3, by the functions with which NCCL itself reads its settings.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/read.py" <<'P'
import ctypes, sys
from nccl import Nccl, in_child

nccl = Nccl(sys.argv[1])
for variable, name, values in (
    ("NCCL_BUFFSIZE", "ncclParamBuffSize", ["8388608", "8M", "8MiB", "8,388,608", "1e6"]),
    ("NCCL_IB_TIMEOUT", "ncclParamIbTimeout", ["22", "022", "08", "22s", "default"]),
    ("NCCL_IB_DISABLE", "ncclParamIbDisable", ["1", "true"]),
):
    read = [in_child({variable: value}, lambda: str(nccl.function(name, ctypes.c_int64)())) for value in values]
    print(variable + ":", "; ".join(f"{value} is {number}" for value, number in zip(values, read)))
P
common="NCCL_BUFFSIZE: 8388608 is 8388608; 8M is 8; 8MiB is 8; 8,388,608 is 8; 1e6 is 1
NCCL_IB_TIMEOUT: 22 is 22; 022 is 18; 08 is 0; 22s is 22; default is"
for release in 2.21.5 2.32.3; do
    nccl_get "$release"
    case $release in 2.21.5) default=0 ;; *) default=20 ;; esac
    compare "NCCL $release" "$(python3 "$folder/read.py" "$(nccl_library "$release")")" "$common $default
NCCL_IB_DISABLE: 1 is 1; true is 0"
done
exit "$status"
