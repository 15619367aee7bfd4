#!/usr/bin/env bash
# In algSelection of ncclCollConfig_t, "^RING,^TREE" excludes nothing, and "RING_LL" selects LL128 too.
#
# One expects: the syntax of NCCL_ALGO, where one ^ at the front excludes the whole list, or at least that two exclusions exclude both. RING_LL
#   is one algorithm with one protocol.
# What happens: a comma joins sets: all but ring, joined with all but tree, is all. "^RING,TREE" leaves tree in. A name stands for all names that
#   begin with it, so RING_LL is RING_LL and RING_LL128, and N is NVLS and NVLSTREE. The call returns success. The header names no syntax.
# What follows: an exclusion that excludes nothing. A plus sign intersects: write "^RING+^TREE", and "RING_LL+^RING_LL128" for LL alone.
#
# Seen with nvidia-nccl-cu12 2.31.2 and 2.32.3, by the function that reads the selection; no GPU took part.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/selections.py" <<'PYTHON'
import ctypes
import sys

from nccl import Nccl

parse = Nccl(sys.argv[1]).function("ncclAlgParse", ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))


def mask(selection: str) -> int:
    bits = ctypes.c_uint64()
    result = parse(selection.encode(), ctypes.byref(bits))
    return -1 if result else bits.value


PARTS = ("RING_LL128", "RING_SIMPLE", "TREE_LL128", "TREE_SIMPLE", "NVLS_SIMPLE", "NVLSTREE_SIMPLE")
low = {name: mask(f"{name}_LL+^{name}_LL128") for name in ("RING", "TREE")}
for selection in ("RING_LL", "RING_LL+^RING_LL128", "^RING,^TREE", "^RING,TREE", "^RING+^TREE", "N", "NVLS_TREE"):
    seen = mask(selection)
    held = [f"{name}_LL" for name, bits in low.items() if seen & bits] + [name for name in PARTS if seen & mask(name)]
    print(f"{selection}:", "an error" if seen < 0 else " ".join(held))
PYTHON
for release in 2.31.2 2.32.3; do
    nccl_get "$release"
    compare "NCCL $release" "$(python3 "$folder/selections.py" "$(nccl_library "$release")")" \
        "RING_LL: RING_LL RING_LL128
RING_LL+^RING_LL128: RING_LL
^RING,^TREE: RING_LL TREE_LL RING_LL128 RING_SIMPLE TREE_LL128 TREE_SIMPLE NVLS_SIMPLE NVLSTREE_SIMPLE
^RING,TREE: TREE_LL TREE_LL128 TREE_SIMPLE NVLS_SIMPLE NVLSTREE_SIMPLE
^RING+^TREE: NVLS_SIMPLE NVLSTREE_SIMPLE
N: NVLS_SIMPLE NVLSTREE_SIMPLE
NVLS_TREE: an error"
done
exit "$status"
