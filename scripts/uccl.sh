#!/usr/bin/env bash
# `ferrite compare` with the plugin of UCCL, from its Python package, as side A: as far as that runs on the software device.
#
#   scripts/uccl.sh [DIST]     DIST is what scripts/build.sh made; by default dist. 77: what is missing is named
#
# UCCL's plugin calls the CUDA runtime and is not linked with it, so it gets NVIDIA's own. That needs a GPU and its driver: without them
# the plugin ends its process in `init`, and the comparison has to say so, with the name of the side.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
dist=${1:-dist}
UCCL=0.1.1 CUDA_RUNTIME=12.9.79

folder=$CACHE/uccl-$UCCL-cuda-$CUDA_RUNTIME
plugin=$folder/uccl/lib/libnccl-net-uccl.so runtime=$folder/nvidia/cuda_runtime/lib/libcudart.so.12
if [ ! -e "$folder" ]; then
    [ "$(uname -m)" = x86_64 ] || { echo "skipped: uccl has no package for $(uname -m)" && exit 77; }
    fresh=$(mktemp -d -p "$CACHE")
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.12 \
        --platform manylinux_2_35_x86_64 --platform manylinux2014_x86_64 --dest "$fresh/wheels" \
        "uccl==$UCCL" "nvidia-cuda-runtime-cu12==$CUDA_RUNTIME"; then
        rm -rf "$fresh"
        echo "skipped: the packages uccl $UCCL and nvidia-cuda-runtime-cu12 $CUDA_RUNTIME cannot be fetched"
        exit 77
    fi
    for wheel in "$fresh"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$fresh"; done
    rm -rf "$fresh/wheels"
    mv -T "$fresh" "$folder"
fi

report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT
# compare [NAME=VALUE]: its output, and its exit code in the last line.
compare() {
    local code=0
    env "$@" "$dist/bin/ferrite" compare --against "$plugin" --seconds 20 --timeout 30 --report "$report" 2>&1 || code=$?
    echo "exit code $code"
}

without=$(compare)
echo "$without"
grep -q '^ferrite: A = .*undefined symbol: cuda.*LD_PRELOAD' <<<"$without" || die "without the CUDA runtime, the error does not name what is missing"

with=$(compare "LD_PRELOAD=$runtime")
echo "$with"
case "${with##*exit code }" in
    0 | 1 | 3) grep -q 'A = .*UCCL\|A = RDMA_Plugin' <<<"$with" || die "the report does not name side A" ;;
    2) grep -q '^ferrite: A = .*libnccl-net-uccl.so: rank [01]: ' <<<"$with" || die "the error does not name side A" ;;
    *) die "no verdict, and no sentence" ;;
esac
ldconfig -p | grep libcuda.so.1 >/dev/null || echo "no CUDA driver here: UCCL $UCCL ends in init"
