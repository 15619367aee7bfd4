#!/usr/bin/env bash
# Loads and checks the portable build in root file systems of other releases of Debian, each with its own glibc and libibverbs. The root
# file systems are made of the distribution's packages, without running anything of these, and kept outside of this repository.
#
#   scripts/other_systems.sh DIR [RELEASE...]    DIR is what scripts/build.sh --portable made; by default bullseye, bookworm and trixie
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# -ge 1 ] || die "usage: scripts/other_systems.sh DIR [RELEASE...]"
built=$(realpath "$1")
shift
[ -x "$built/bin/ferrite" ] || die "$built/bin/ferrite is missing: scripts/build.sh --portable makes it"
[ "$(id -u)" = 0 ] || die "needs root, to change the root folder"
command -v mmdebstrap >/dev/null || install_packages mmdebstrap
releases=("$@")
[ $# -gt 0 ] || releases=(bullseye bookworm trixie)

# Points of `ferrite check` that need neither NCCL nor a GPU, and little time.
POINTS=1,2,4,5,6,7,8,9,13,14,15,16,20,21,28,29,30,35,36,37,45,49,53

# inside ROOT COMMAND...: with the built files in /mnt, and what a process expects of a system.
inside() {
    # shellcheck disable=SC2016
    unshare --mount --fork sh -c 'root=$0 built=$1 && shift &&
        mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" && mount -t sysfs sys "$root/sys" &&
        mount -t tmpfs tmp "$root/tmp" && mount --bind "$built" "$root/mnt" && exec chroot "$root" "$@"' "$1" "$built" "${@:2}"
}

for release in "${releases[@]}"; do
    root=$CACHE/root-$release
    if [ ! -e "$root/complete" ]; then
        rm -rf "$root"
        mkdir -p "$CACHE"
        # Whether a mirror has this release is another matter.
        if ! mmdebstrap --quiet --variant=extract --include=base-files,libc-bin,libgcc-s1,libibverbs1,ibverbs-providers,dash,coreutils \
            "$release" "$root" 2>"$CACHE/root.log"; then
            echo "skipped: $release: $(tail -n 1 "$CACHE/root.log")"
            continue
        fi
        mkdir -p "$root"/{dev,proc,sys,tmp,mnt}
        touch "$root/complete"
    fi
    echo "== $release, $(inside "$root" /usr/bin/getconf GNU_LIBC_VERSION)"
    # It has no device; its libibverbs is found, and what that lacks is told.
    inside "$root" /mnt/bin/ferrite doctor --only libibverbs | sed -n 1p
    # Set-up, data, order, errors, peers that are killed, the end of a process.
    inside "$root" /mnt/bin/ferrite check --plugin /mnt/lib/libnccl-net.so --only "$POINTS" | tail -n 1
    inside "$root" /mnt/bin/ferrite verify --plugin /mnt/lib/libnccl-net.so | tail -n 1
done
