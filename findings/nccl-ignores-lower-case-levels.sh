#!/usr/bin/env bash
# NCCL_NET_GDR_LEVEL=sys has no effect, and no line says so: levels need capital letters, although NCCL_DEBUG=info works.
#
# One expects: case matters nowhere or everywhere, and an unknown level is an error, or at least a line in the log.
# What happens: NCCL_DEBUG, NCCL_NET and the names of algorithms are compared without regard to case. The levels of NCCL_NET_GDR_LEVEL and
#   NCCL_P2P_LEVEL are not: `sys`, `Phb`, and `PIX` followed by a blank leave the default, without a line even at INFO. Legacy digits are
#   read: 2 is PXB, and any digit above the list is SYS.
# What follows: look for "NCCL_NET_GDR_LEVEL set by environment to SYS" in the log. Its absence is the only sign of a mistake.
#
# Seen with nvidia-nccl-cu12 2.21.5 and 2.32.3, by the function that reads both variables.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/level.py" <<'P'
import ctypes, sys
from nccl import Nccl, in_child

nccl = Nccl(sys.argv[1])
read = nccl.function("ncclGetLevel", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


def level() -> str:
    found = ctypes.c_int(-1)
    result = read(ctypes.addressof(found), None, b"NCCL_NET_GDR_LEVEL")
    return f"error {result}" if result else "not set" if found.value < 0 else str(found.value)


def of(text: str) -> str:
    return in_child({"NCCL_NET_GDR_LEVEL": text}, level)


known = {of(name): name for name in ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")}
for text in ("SYS", "sys", "Phb", "PIX ", "2", "9"):
    print(f"'{text}':", known.get(of(text), of(text)))
P
for release in 2.21.5 2.32.3; do
    nccl_get "$release"
    compare "NCCL $release" "$(python3 "$folder/level.py" "$(nccl_library "$release")")" \
        "'SYS': SYS
'sys': not set
'Phb': not set
'PIX ': not set
'2': PXB
'9': SYS"
done
exit "$status"
