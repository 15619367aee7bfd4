#!/usr/bin/env bash
# Builds for 64-bit ARM and runs that here, with an emulated processor: the plugin's unit tests, NCCL's contract but for the checks that
# load NCCL, and every form of message byte by byte. How processors order memory is not emulated: what is read of memory that a device
# writes has a barrier for that (crates/verbs/src/record.rs).
#
#   scripts/aarch64.sh           some ten minutes on two cores
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# = 0 ] || die "usage: scripts/aarch64.sh"
[ "$(uname -m)" != aarch64 ] || die "this is a machine with such a processor: scripts/test.sh"
# The kernel starts programs for 64-bit ARM with the emulator, in namespaces of its own.
if ! unshare --user --map-root-user --mount mount -t binfmt_misc none /proc/sys/fs/binfmt_misc; then
    echo "skipped: binfmt_misc cannot be mounted in a user namespace (Linux 6.7 or newer can, where user namespaces are allowed)"
    exit 77
fi
target=aarch64-unknown-linux-gnu
setup_build
setup_portable "$target"
# What only this processor has.
cargo clippy --target "$target" -p nccl-net-ferrite -p ferrite-proto -p ferrite-verbs -p softrnic --lib --locked --quiet -- -D warnings
# The emulator, and glibc for the programs in it.
libraries=/usr/aarch64-linux-gnu
if ! command -v qemu-aarch64 >/dev/null || [ ! -e $libraries/lib/libc.so.6 ] || [ ! -e $libraries/lib/libgcc_s.so.1 ]; then
    install_packages qemu-user libc6-arm64-cross libgcc-s1-arm64-cross
fi
export QEMU_LD_PREFIX=$libraries

built=$CARGO_TARGET_DIR/portable/$target-dist
scripts/build.sh --portable "$built" aarch64

# emulated COMMAND...
emulated() {
    # shellcheck disable=SC2016
    unshare --user --map-root-user --mount bash -c '
        set -e
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        header="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
        mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
        echo ":aarch64:M::$header:$mask:$0:" >/proc/sys/fs/binfmt_misc/register
        exec "$@"' "$(command -v qemu-aarch64)" "$@"
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# summed COMMAND...: emulated; the last line of what it prints, or all if it fails.
summed() {
    emulated "$@" >"$log" 2>&1 || { cat "$log" && return 1; }
    tail -n 1 "$log"
}

# All but those that load NCCL, which is this machine's.
points=$(emulated "$built/bin/ferrite" check --list | awk '$2 !~ /^(name|as-the-built-in|foreign-peers)$/ { printf "%s%s", comma, $1; comma = "," }')
[ -n "$points" ] || die "ferrite check --list names no checks"
summed "$built/bin/ferrite" check --plugin "$built/lib/libnccl-net.so" --only "$points"
summed "$built/bin/ferrite" verify --plugin "$built/lib/libnccl-net.so"

CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64 \
    cargo-zigbuild test --target "$target.2.17" --locked --quiet -p nccl-net-ferrite -p ferrite-proto -p ferrite-verbs --lib
