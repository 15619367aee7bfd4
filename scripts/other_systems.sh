#!/usr/bin/env bash
# Loads and checks the portable build in root file systems of other releases of Debian and Ubuntu, each with its own glibc and libibverbs.
# The root file systems are made of the distribution's packages, without running anything of these, and kept outside of this repository.
#
#   scripts/other_systems.sh DIR [RELEASE...]    DIR is what scripts/build.sh --portable made; by default all that RELEASES lists
#
# Debian's supported releases come from where this machine's packages come from. UBUNTU_MIRROR names an archive of Ubuntu's packages, DEBIAN_ARCHIVE
# one of Debian's releases that have ended, as http://HOST/ubuntu and http://HOST/debian; without them those releases are skipped.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# -ge 1 ] || die "usage: scripts/other_systems.sh DIR [RELEASE...]"
built=$(realpath "$1")
shift
[ -x "$built/bin/ferrite" ] || die "$built/bin/ferrite is missing: scripts/build.sh --portable makes it"
[ "$(id -u)" = 0 ] || die "needs root, to change the root folder"
command -v mmdebstrap >/dev/null || install_packages mmdebstrap

# From glibc 2.23 and libibverbs 1.1.8 on. RHEL 8 has the glibc of buster, 2.28; that of bionic is older, 2.27.
# sid has the newest driver libraries.
RELEASES="xenial bionic buster focal bullseye jammy bookworm noble trixie sid"
[ $# -gt 0 ] || read -ra releases <<<"$RELEASES"
[ $# = 0 ] || releases=("$@")

# Points of `ferrite check` that need neither NCCL nor a GPU, and little time.
POINTS=1,2,4,5,6,7,8,9,13,14,15,16,20,21,28,29,30,35,36,37,45,49,53

# inside ROOT COMMAND...: with the built files in /mnt, and what a process expects of a system.
inside() {
    # shellcheck disable=SC2016
    unshare --mount --fork sh -c 'root=$0 built=$1 && shift && mount --bind "$root" "$root" &&
        mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" && mount -t sysfs sys "$root/sys" &&
        mount -t tmpfs tmp "$root/tmp" && mount --bind "$built" "$root/mnt" && exec chroot "$root" "$@"' "$1" "$built" "${@:2}"
}

# ubuntu_keyring: the file with the keys that Ubuntu signs with, out of its own package, which Debian does not have.
ubuntu_keyring() {
    local package=ubuntu-keyring_2023.11.28.1_all.deb keyring=$CACHE/ubuntu-keyring
    local file=$keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg
    if [ ! -e "$file" ]; then
        curl -fsS -o "$CACHE/$package" "$UBUNTU_MIRROR/pool/main/u/ubuntu-keyring/$package" &&
            echo "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $CACHE/$package" | sha256sum --check --quiet &&
            dpkg-deb --extract "$CACHE/$package" "$keyring" || return
    fi
    echo "$file"
}

# make_root RELEASE ROOT: glibc, libibverbs with its providers, and what runs a command. What fails is told to stderr.
make_root() {
    local options=() source=() packages=base-files,libc-bin,libibverbs1,dash,coreutils
    case "$1" in
    xenial) packages+=,libgcc1,libmlx5-1 ;;
    bionic | buster) packages+=,libgcc1,ibverbs-providers ;;
    *) packages+=,libgcc-s1,ibverbs-providers ;;
    esac
    case "$1" in
    xenial | bionic | focal | jammy | noble)
        [ -n "${UBUNTU_MIRROR:-}" ] || { echo "E: UBUNTU_MIRROR names no archive" >&2 && return 1; }
        options=("--components=main,universe" --keyring="$(ubuntu_keyring)") || return
        source=("$UBUNTU_MIRROR")
        ;;
    buster)
        [ -n "${DEBIAN_ARCHIVE:-}" ] || { echo "E: DEBIAN_ARCHIVE names no archive" >&2 && return 1; }
        options=(--keyring=/usr/share/keyrings/debian-archive-removed-keys.gpg --keyring=/usr/share/keyrings/debian-archive-keyring.gpg)
        source=("$DEBIAN_ARCHIVE")
        ;;
    esac
    # An archive that stands still has expired at some time.
    mmdebstrap --aptopt='Acquire::Check-Valid-Until "false"' --variant=extract --include="$packages" "${options[@]}" "$1" "$2" "${source[@]}" >&2 &&
        mkdir -p "$2"/{dev,proc,sys,tmp,mnt}
}

# beneath ROOT PROVIDER FAULTS COMMAND...: on this driver library, with softrnic as the card; the last line.
beneath() {
    inside "$1" /mnt/bin/softrnic run --provider "$2" --same-card --time-scale 0.05 --faults "$3" -- "${@:4}" | tail -n 1
}

# ionic ROOT: faults and the contract on libionic; that `--driver ionic` does what it does.
ionic() {
    local fault seed truths=softrnic/tests/clients/truths.c
    beneath "$1" ionic "" /mnt/bin/ferrite check --verbs system
    for fault in "port-down=1500ms device=softrnic0/1 message=500 times=1" "qp-error opcode=write message=9.. every=5 times=100"; do
        beneath "$1" ionic "$fault" /mnt/bin/ferrite verify --verbs system --over single --long 20000
    done
    cc -o "$1/truths" "$truths" -libverbs
    local run=(inside "$1" env SOFTRNIC_QUIET=1 /mnt/bin/softrnic run --time-scale 0.05)
    for seed in 1 2 3; do
        "${run[@]}" --provider ionic -- /truths "$seed" 40 unflushed >"$1/on-libionic"
        "${run[@]}" --driver ionic --tools -- /truths "$seed" 40 unflushed >"$1/on-softrnic"
        cmp "$1/on-libionic" "$1/on-softrnic"
        echo "$(wc -l <"$1/on-libionic") lines of what libionic does, and softrnic's driver ionic: the same"
    done
}

tried=0
for release in "${releases[@]}"; do
    root=$CACHE/root-$release
    if [ ! -e "$root/complete" ]; then
        rm -rf "$root"
        mkdir -p "$CACHE"
        # Whether a mirror has this release, and can be reached, is another matter.
        if ! make_root "$release" "$root" 2>"$CACHE/root.log"; then
            echo "skipped: $release: $(grep -E '^(E:|curl)' "$CACHE/root.log" | head -n 1)"
            continue
        fi
        touch "$root/complete"
    fi
    tried=$((tried + 1))
    echo "== $release, $(inside "$root" /usr/bin/getconf GNU_LIBC_VERSION)"
    # It has no device; its libibverbs is found, and what that lacks is told.
    inside "$root" /mnt/bin/ferrite doctor --only libibverbs | sed -n 1p
    # Set-up, data, order, errors, peers that are killed, the end of a process.
    inside "$root" /mnt/bin/ferrite check --plugin /mnt/lib/libnccl-net.so --only "$POINTS" | tail -n 1
    inside "$root" /mnt/bin/ferrite verify --plugin /mnt/lib/libnccl-net.so | tail -n 1
    # On the release's own driver libraries with softrnic as the card, from rdma-core 39 on. A version that softrnic does not know fails.
    for library in "$root"/usr/lib/x86_64-linux-gnu/libibverbs/lib{mlx5,bnxt_re,erdma,ionic}-rdmav*.so; do
        [[ "$library" =~ lib([a-z0-9_]+)-rdmav([0-9]+)\.so$ && "${BASH_REMATCH[2]}" -ge 34 ]] || continue
        provider=${BASH_REMATCH[1]}
        beneath "$root" "$provider" 'drop chance=0.01' /mnt/bin/ferrite verify --verbs system
        # No test of each change has this library.
        [ "$provider" != ionic ] || ionic "$root"
    done
done
# 77: nothing has been tried, as tests say that they were skipped.
[ "$tried" -gt 0 ] || exit 77
