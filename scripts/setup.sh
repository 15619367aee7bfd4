#!/usr/bin/env bash
# What building and testing need beside this repository. Sourced by the other scripts; installs what is missing where it
# may (root on Debian or Ubuntu), and otherwise names it.

set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
RUST_MIN=1.90

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# The newest directory with a libclang that rdma-sys 0.3.0's old bindgen can use.
find_libclang() {
    local dir
    for dir in /usr/lib/llvm-15/lib /usr/lib/llvm-14/lib /usr/lib64/llvm15/lib /usr/lib64/llvm14/lib; do
        # Not libclang-cpp, which comes without the C library that bindgen loads.
        if compgen -G "$dir/libclang.so*" >/dev/null || compgen -G "$dir/libclang-1[45].so*" >/dev/null; then
            echo "$dir"
            return
        fi
    done
}

may_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

missing_packages() {
    command -v cc >/dev/null || echo gcc
    command -v ld >/dev/null || echo binutils
    command -v curl >/dev/null || command -v cargo >/dev/null || echo curl ca-certificates
    command -v pkg-config >/dev/null || echo pkg-config
    [ -e /usr/include/stdio.h ] || echo libc6-dev
    pkg-config --exists libibverbs 2>/dev/null || echo libibverbs-dev
    pkg-config --exists librdmacm 2>/dev/null || echo librdmacm-dev
    [ -n "$(find_libclang)" ] || echo libclang-14-dev
    # For fetching stock NCCL, which building does not do.
    [ "$(basename "$0")" = build.sh ] || python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
    # For tests that are skipped without them.
    if [ "$(basename "$0")" != build.sh ] && may_install; then
        command -v ibv_devinfo >/dev/null || echo ibverbs-utils
        command -v ib_write_bw >/dev/null || echo perftest
    fi
}

install_packages() {
    local missing
    missing=$(missing_packages | tr '\n' ' ')
    [ -n "${missing// /}" ] || return 0
    if ! may_install; then
        die "missing: $missing(Debian and Ubuntu package names; as root this script installs them itself)"
    fi
    echo "installing: $missing"
    local log
    log=$(mktemp)
    # shellcheck disable=SC2086
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
        >"$log" 2>&1 || die "apt-get failed: $(tail -n 3 "$log")"
    rm -f "$log"
}

install_rust() {
    [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
    if ! command -v cargo >/dev/null; then
        [ "$(id -u)" = 0 ] || die "missing: Rust $RUST_MIN or newer, see https://rustup.rs"
        echo "installing: Rust, by rustup"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y -q --profile minimal \
            -c rustfmt -c clippy || die "rustup failed; install Rust $RUST_MIN or newer yourself, see https://rustup.rs"
        . "$HOME/.cargo/env"
    fi
    local version
    version=$(rustc --version | awk '{print $2}')
    [ "$(printf '%s\n%s\n' "$RUST_MIN" "$version" | sort -V | head -n 1)" = "$RUST_MIN" ] ||
        die "Rust $version is too old: $RUST_MIN or newer is needed (rustup update)"
}

# A slim installation of Rust comes without these.
install_components() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    command -v rustup >/dev/null || die "missing: cargo fmt and cargo clippy"
    rustup component add rustfmt clippy
}

# What runs the tests. A version that is there is taken as it is.
install_nextest() {
    cargo nextest --version >/dev/null 2>&1 && return
    echo "installing: cargo-nextest, built from source once, some minutes"
    cargo install --locked --quiet cargo-nextest || die "cargo install cargo-nextest failed; it is what runs the tests"
}

install_packages
install_rust
# What the user chose is taken as it is.
export LIBCLANG_PATH=${LIBCLANG_PATH:-$(find_libclang)}
