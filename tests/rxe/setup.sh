#!/usr/bin/env bash
# Prepares the virtual machine of run.sh: installs what is missing, takes the kernel and its modules out of Debian's
# package (which is unpacked, not installed), and packs an initramfs. Prints the folder where they are; does nothing if they
# are there. Ends with 77 and the reason where such a machine cannot be had.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/setup.sh"
shopt -s inherit_errexit

HERE=$ROOT/tests/rxe
# What init needs, each with all that it depends on. rxe asks for crc32 by name, which its dependencies do not say.
MODULES="crc32_generic virtio_pci virtio_rng 9pnet_virtio 9p overlay veth sch_netem rdma_rxe rdma_ucm"

unavailable() {
    echo "$*" >&2
    exit 77
}

missing_packages() {
    command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
    [[ "$(ldd "$(command -v busybox)" 2>&1 || true)" = *"not a dynamic"* ]] || echo busybox-static
    command -v modprobe >/dev/null || echo kmod
    command -v cpio >/dev/null || echo cpio
    command -v xz >/dev/null || echo xz-utils
    { command -v ip && command -v tc && command -v rdma; } >/dev/null || echo iproute2
    command -v ibv_devinfo >/dev/null || echo ibverbs-utils
    [ -e /etc/libibverbs.d/rxe.driver ] || echo ibverbs-providers
}

# unpack_kernel FOLDER: the newest kernel of this release of Debian, not the cloud flavour, which has no rdma_rxe.
unpack_kernel() {
    local package
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
    if [ -z "$package" ] && may_install; then
        apt-get update -qq >/dev/null 2>&1 || true
        package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
    fi
    [ -n "$package" ] || unavailable "there is no package linux-image-amd64 here: Debian has it"
    echo "fetching: $package" >&2
    # The list of packages may be older than the archive.
    (cd "$1" && { apt-get download -qq "$package" || { apt-get update -qq && apt-get download -qq "$package"; }; }) \
        >"$1/log" 2>&1 || die "cannot fetch $package: $(tail -n 3 "$1/log")"
    dpkg -x "$1/$package"_*.deb "$1/tree"
    # Later releases have one folder for both.
    [ -e "$1/tree/lib" ] || ln -s usr/lib "$1/tree/lib"
}

number_at() {
    od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '
}

# extract_vmlinux VMLINUZ: the ELF file inside, which QEMU starts without firmware and without unpacking it under emulation.
# The header of the image says where it is: sectors before the protected-mode code, offset and length behind them.
extract_vmlinux() {
    local sectors offset length
    sectors=$(number_at "$1" 497 1)
    offset=$(number_at "$1" 584 4)
    length=$(number_at "$1" 588 4)
    dd if="$1" bs=1M iflag=skip_bytes,count_bytes skip=$(((sectors + 1) * 512 + offset)) count="$length" status=none |
        xz -dc --single-stream
}

# pack_initramfs TREE: busybox, and the modules in the order in which they are to be loaded; init comes in run.sh.
pack_initramfs() {
    local tree=$1 version module verb path name root
    version=$(ls "$tree/lib/modules")
    depmod -b "$tree" "$version"
    root=$(mktemp -d -p "$tree")
    mkdir -p "$root"/{bin,dev,proc,sys,modules}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for module in $MODULES; do
        modprobe -d "$tree" -S "$version" --show-depends "$module"
    done | while read -r verb path _; do
        [ "$verb" = insmod ] || continue
        name=$(basename "${path%.xz}")
        [ ! -e "$root/modules/$name" ] || continue
        case "$path" in
        *.xz) xz -dc "$path" >"$root/modules/$name" ;;
        *) cp "$path" "$root/modules/$name" ;;
        esac
        echo "$name" >>"$root/modules/order"
    done
    [ "$(wc -l <"$root/modules/order")" -ge "$(wc -w <<<"$MODULES")" ] || die "modules are missing in $tree"
    (cd "$root" && find . | cpio -o -H newc --quiet)
}

[ "$(uname -m)" = x86_64 ] || unavailable "only x86-64 is supported"
command -v apt-get >/dev/null || [ -z "$(missing_packages)" ] ||
    unavailable "these cannot be installed here: $(missing_packages | tr '\n' ' ')"
may_install || [ -z "$(missing_packages)" ] || unavailable "missing, and only root can install: $(missing_packages | tr '\n' ' ')"
install_packages >&2

machine=${XDG_CACHE_HOME:-$HOME/.cache}/ferrite/rxe
made_from=$(sha256sum <"$HERE/setup.sh")
if [ "$(cat "$machine/made-from" 2>/dev/null)" != "$made_from" ]; then
    mkdir -p "$machine"
    work=$(mktemp -d -p "$machine")
    trap 'rm -rf "$work"' EXIT
    unpack_kernel "$work"
    extract_vmlinux "$work"/tree/boot/vmlinuz-* >"$work/vmlinux"
    pack_initramfs "$work/tree" >"$work/initramfs"
    mv "$work/vmlinux" "$work/initramfs" "$machine/"
    echo "$made_from" >"$machine/made-from"
fi
echo "$machine"
