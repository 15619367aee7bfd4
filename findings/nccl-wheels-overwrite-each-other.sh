#!/usr/bin/env bash
# The wheels nvidia-nccl-cu12 and nvidia-nccl-cu13 install the same files: the last one counts, and removing either one removes NCCL.
#
# One expects: two packages with different names have different files, or pip refuses the second one.
# What happens: both install nvidia/nccl/lib/libnccl.so.2. pip overwrites it without a message, lists both as installed, and `pip check` finds
#   nothing broken. After `pip uninstall` of one, the other is listed and has no library.
# What follows: a package that requires nvidia-nccl-cu12 replaces the NCCL that PyTorch for CUDA 13 came with, by another release and for
#   another CUDA. Ask the library for its version (ncclGetVersion), not pip. To mend, remove the wrong package, then install the right
#   one with --force-reinstall.
#
# Seen with nvidia-nccl-cu13 2.28.9 and nvidia-nccl-cu12 2.21.5, with pip 26.0.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

python3 -m venv "$folder/python"
pip() { "$folder/python/bin/python" -m pip --disable-pip-version-check "$@" 2>/dev/null; }
pip install --quiet pip==26.0
library() {
    local found
    found=$(echo "$folder"/python/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2)
    python3 - "$found" <<'P'
import ctypes, os, sys

version = ctypes.c_int()
if os.path.exists(sys.argv[1]):
    ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
print(version.value or "none")
P
}
# after WHAT: what pip and the library say.
after() { echo "$1: pip lists $(pip list | sed -n 's/^nvidia-nccl-\(cu..\) */\1 /p' | xargs); the library is $(library); $(pip check)"; }
seen=$(
    pip install --quiet nvidia-nccl-cu13==2.28.9
    after "install cu13"
    pip install --quiet nvidia-nccl-cu12==2.21.5
    after "install cu12"
    pip uninstall --quiet --yes nvidia-nccl-cu12
    after "uninstall cu12"
    pip install --quiet --force-reinstall nvidia-nccl-cu13==2.28.9
    after "reinstall cu13"
)
compare "pip 26.0" "$seen" "install cu13: pip lists cu13 2.28.9; the library is 22809; No broken requirements found.
install cu12: pip lists cu12 2.21.5 cu13 2.28.9; the library is 22105; No broken requirements found.
uninstall cu12: pip lists cu13 2.28.9; the library is none; No broken requirements found.
reinstall cu13: pip lists cu13 2.28.9; the library is 22809; No broken requirements found."
exit "$status"
