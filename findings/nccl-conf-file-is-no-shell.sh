#!/usr/bin/env bash
# A line `NCCL_IB_TC = 106 # lossless` in NCCL's configuration file sets a variable whose name ends in a blank, and no message says so.
#
# One expects: blanks around `=`, quotes, `export` and comments after a value have their usual meaning, or are refused.
# What happens: the name is everything before the first `=`, the value everything after it. Quotes stay in the value, and so does `#
#   lossless`. Values longer than 1,023 bytes are cut. The environment overrides the file. The variables become part of the process's
#   environment, so children inherit them.
# What follows: write NAME=value and nothing else. A name with a blank in the output of `env` shows the mistake.
#
# Seen with nvidia-nccl-cu12 2.28.9 and 2.32.3 (NCCL_CONF_FILE came with 2.23), by the environment after ncclGetUniqueId.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

{
    echo "NCCL_ONE = 106"
    echo 'NCCL_TWO="106"'
    echo "NCCL_THREE=106 # lossless"
    echo "export NCCL_FOUR=106"
    echo "NCCL_FIVE=$(printf 'mlx5_%s,' {1..400})"
    echo "NCCL_SIX=file"
} >"$folder/nccl.conf"
cat >"$folder/variables.py" <<'P'
import ctypes, sys
from nccl import Nccl

Nccl(sys.argv[1]).library.ncclGetUniqueId(ctypes.create_string_buffer(128))
get = ctypes.CDLL(None).getenv
get.restype = ctypes.c_char_p
for name in ("NCCL_ONE", "NCCL_ONE ", "NCCL_TWO", "NCCL_THREE", "NCCL_FOUR", "export NCCL_FOUR", "NCCL_FIVE", "NCCL_SIX"):
    value = get(name.encode())
    print(f"'{name}':", "not set" if value is None else f"{len(value)} bytes" if len(value) > 100 else f"'{value.decode()}'")
P
for release in 2.28.9 2.32.3; do
    nccl_get "$release"
    compare "NCCL $release" \
        "$(NCCL_SOCKET_IFNAME=lo NCCL_CONF_FILE=$folder/nccl.conf NCCL_SIX=environment python3 "$folder/variables.py" "$(nccl_library "$release")")" \
        "'NCCL_ONE': not set
'NCCL_ONE ': ' 106'
'NCCL_TWO': '\"106\"'
'NCCL_THREE': '106 # lossless'
'NCCL_FOUR': not set
'export NCCL_FOUR': '106'
'NCCL_FIVE': 1023 bytes
'NCCL_SIX': 'environment'"
done
exit "$status"
