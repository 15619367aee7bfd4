# shellcheck shell=bash disable=SC2034
# What the scripts have in common: a folder that is removed at the end, released packages in it, and the comparison.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
status=0

# nccl_get RELEASE: installs that release from its wheel; libnccl.so.2 is then `nccl_library RELEASE`.
nccl_get() {
    python3 -m pip install --quiet --no-deps --target "$folder/nccl-$1" "nvidia-nccl-cu12==$1" 2>/dev/null
}
nccl_library() { echo "$folder/nccl-$1/nvidia/nccl/lib/libnccl.so.2"; }

# compare WHAT SEEN EXPECTED: shows what was seen, and notes a difference for the script's exit status.
compare() {
    printf '%s\n%s\n' "$1" "$2"
    [ "$2" = "$3" ] || { echo "$1 behaves otherwise now; expected:"; echo "$3"; status=1; }
}
