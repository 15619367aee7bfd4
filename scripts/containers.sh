#!/usr/bin/env bash
# Tries the packages of a folder as docs/install.md says, in containers, without a GPU: both Dockerfiles, the .deb, the tarball, the wheel.
#
#   scripts/containers.sh [FOLDER]     FOLDER has the packages; by default packages/
#   scripts/containers.sh --remove     removes what it keeps: the base images
#
# The base of the Dockerfiles stands for pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime. It is Debian with PyTorch 2.6.0 and all CUDA
# libraries that pip installs with it, NCCL 2.21.5 among them, in /opt/conda. It is made once: pip fetches 3 GB. 77: it cannot be made.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# -le 1 ] || die "usage: scripts/containers.sh [FOLDER | --remove]"
kept=$CACHE/containers
base=docker.io/pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime
system=docker.io/library/debian:bookworm
[ "$(id -u)" = 0 ] || die "needs root, to change the root folder"
[ "$(uname -m)" = x86_64 ] || { echo "skipped: PyTorch's image is for x86_64" && exit 77; }
command -v buildah >/dev/null && command -v mmdebstrap >/dev/null || install_packages buildah mmdebstrap

# Images and containers of this script alone. An overlay cannot be mounted over another one, as the root of a container is: then each layer is a
# copy, and takes 6 GB.
mkdir -p "$kept"
driver=overlay
[ "$(stat --file-system --format %T "$kept")" != overlayfs ] || driver=vfs
buildah() { command buildah --root "$kept/images" --runroot "$kept/run" --storage-driver "$driver" "$@"; }
# build NAME ARGUMENT...: an image of local ones, without a container engine; prints its id.
build() { buildah build --quiet --isolation chroot --pull-never --tag "$@"; }

work=$(mktemp -d) containers=() images=()
remove() {
    [ "${#containers[@]}" = 0 ] || buildah rm "${containers[@]}" >/dev/null || true
    [ "${#images[@]}" = 0 ] || buildah rmi --force "${images[@]}" >/dev/null || true
    rm -rf "$work"
}
trap remove EXIT

if [ "${1:-}" = --remove ]; then
    buildah rm --all >/dev/null
    buildah rmi --all --force >/dev/null
    rm -rf "$kept"
    exit
fi
folder=$(realpath "${1:-packages}")
[ -n "$(compgen -G "$folder/nccl_net_ferrite-*_x86_64.whl")" ] || die "$folder has no wheel: scripts/package.sh makes it"

(cd "$folder" && sha256sum --check --quiet SHA256SUMS) || die "$folder: SHA256SUMS has other checksums"

# -- the bases --

make_system() {
    mmdebstrap --quiet --variant=apt --include=ca-certificates,python3-venv bookworm "$work/root.tar" &&
        printf 'FROM scratch\nADD root.tar /\nCMD ["bash"]\n' >"$work/Dockerfile" &&
        build "$system" "$work" >/dev/null && rm "$work/root.tar"
}

# Here, where pip is set up.
fetch_torch() {
    [ -e "$kept/wheels/complete" ] && return
    setup_fetch
    local platform platforms=()
    for platform in manylinux1 manylinux2014 manylinux_2_17 manylinux_2_28; do
        platforms+=(--platform "${platform}_x86_64")
    done
    python3 -m pip download --quiet --no-cache-dir --disable-pip-version-check --only-binary :all: --python-version 3.11 \
        "${platforms[@]}" --dest "$kept/wheels" torch==2.6.0 numpy && touch "$kept/wheels/complete"
}

make_base() {
    fetch_torch || return
    cat >"$work/Dockerfile" <<'END'
FROM debian:bookworm
RUN python3 -m venv /opt/conda && /opt/conda/bin/pip install --no-cache-dir --no-index --find-links /wheels torch==2.6.0 numpy
ENV PATH=/opt/conda/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /workspace
END
    build "$base" --volume "$kept/wheels:/wheels:ro" "$work" >/dev/null && rm -rf "$kept/wheels"
}

for image in system base; do
    buildah inspect --type image "${!image}" >/dev/null 2>&1 && continue
    echo "making ${!image}, once"
    "make_$image" || { echo "skipped: ${!image} cannot be made here" && exit 77; }
done

# -- what the page shows --

# begin IMAGE: a container of it, named in $container.
begin() {
    container=$(buildah from --pull-never "$1")
    containers+=("$container")
}
# inside COMMAND...: in that container; $work/volume is /volume there.
inside() { buildah run --isolation chroot --volume "$work/volume:/volume" "$container" -- "$@"; }
# says WORDS COMMAND...: in that container, its output has to match them.
says() {
    local code=0
    # Into a file: what a short command writes does not always come out of `buildah run`.
    # shellcheck disable=SC2016
    inside sh -c '"$@" >/volume/said 2>&1' sh "${@:2}" 2>/dev/null || code=$?
    grep -oE -m 1 -- ".*$1.*" "$work/volume/said" || die "${*:2}: exit code $code, and not \"$1\": $(cat "$work/volume/said")"
}

# takes_the_plugin PATH: what the image's own NCCL makes of it, and data over it; and that NCCL takes none where no variable is set.
takes_the_plugin() {
    local nccl=/opt/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2
    says "ok +libibverbs +/lib" ferrite doctor --only libibverbs
    says "ok +plugins +NCCL 2\.21\.5: takes $1: Ferrite" env NCCL_NET_PLUGIN="$1" NCCL_NET=Ferrite ferrite doctor --only plugins
    says "valid run, data right" env FERRITE_NCCL=$nccl ferrite verify --loader "$1"
    # Even if somebody runs ldconfig, which knows the plugin by NCCL's own name for it.
    inside ldconfig
    says "NCCL 2\.21\.5: takes no plugin" ferrite doctor --only plugins
}

mkdir "$work/volume"
echo "== the wheel in PyTorch's image (scripts/container/Dockerfile)"
images+=("$(build pytorch-ferrite --file scripts/container/Dockerfile "$folder")")
begin "${images[-1]}"
says "^2.6.0.* \(2, 21, 5\)$" python -c 'import torch; print(torch.__version__, torch.cuda.nccl.version())'
takes_the_plugin /opt/ferrite/lib/libnccl-net.so
# Against the NCCL of the image; the report outlives the container.
says "A = NCCL 2\.21\.5 built in, B = Ferrite" nccl-net-ferrite compare --seconds 20 --out /volume/report
buildah rm "$container" >/dev/null && containers=()
python3 - "$work/volume/report" <<'END'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
found = json.loads((folder / "raw.json").read_text())
source = found["sides"][0]["source"]
assert "/site-packages/nvidia/nccl/" in source["nccl"], source
print(f"the report is kept: {(folder / 'report.html').stat().st_size} bytes; A was {source['nccl']}")
END

echo "== Ferrite's image, loaded, and COPY --from (scripts/container/Dockerfile.image)"
archive=$(compgen -G "$folder/nccl-net-ferrite-*-x86_64-image.tar")
images+=("$(buildah pull --quiet "oci-archive:$archive")")
buildah images --format '{{.Name}}:{{.Tag}}' | grep -E '/nccl-net-ferrite:[0-9.]+$' || die "$archive has no name where it is loaded"
images+=("$(build pytorch-ferrite --file scripts/container/Dockerfile.image "$work")")
begin "${images[-1]}"
takes_the_plugin /opt/ferrite/lib/libnccl-net.so

echo "== the .deb, the tarball and the wheel on Debian"
cp "$folder"/nccl-net-ferrite_*_amd64.deb "$folder"/nccl-net-ferrite-*-linux-x86_64.tar.gz "$folder"/nccl_net_ferrite-*_x86_64.whl "$work/volume"
begin "$system"
# arrives COMMAND...: data over the plugin that is beside this ferrite, on the softrnic beside it.
arrives() { says "ok +loopback .*1 MiB arrived right" sh -c "$*"; }
inside sh -c 'apt-get update -qq && apt-get install -qq -y --no-install-recommends /volume/*.deb && ldconfig' >/dev/null
says "takes no plugin" ferrite doctor --only plugins
says "ok +plugins .*: Ferrite" env NCCL_NET_PLUGIN=/usr/lib/nccl-net-ferrite/lib/libnccl-net.so ferrite doctor --only plugins
arrives "softrnic run -- ferrite doctor --only loopback"
inside apt-get remove -qq -y nccl-net-ferrite >/dev/null
says "^nothing is left$" sh -c 'find /usr /etc /opt -name "*ferrite*" | grep . || echo nothing is left'
inside sh -c 'tar -C /opt -xf /volume/*.tar.gz'
arrives 'cd /opt/nccl-net-ferrite-*/bin && ./softrnic run -- ./ferrite doctor --only loopback'
inside sh -c 'python3 -m venv /opt/venv && /opt/venv/bin/pip install --quiet --no-index /volume/*.whl'
arrives '. /opt/venv/bin/activate && eval "$(nccl-net-ferrite)" && softrnic run -- nccl-net-ferrite doctor --only loopback'
echo "all well"
