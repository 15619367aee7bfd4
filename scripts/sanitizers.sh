#!/usr/bin/env bash
# Runs the plugin, the companion and the software device under tools that see what tests do not: memory that is used after it is freed or
# beyond its end (AddressSanitizer), that is read before it is written (valgrind, of dist/), and undefined behaviour of the data path's guard (Miri).
#
#   scripts/sanitizers.sh              all
#   scripts/sanitizers.sh address
#   scripts/sanitizers.sh memcheck
#   scripts/sanitizers.sh miri
#
# 77: nothing could be run.
# AddressSanitizer comes with Rust; RUSTC_BOOTSTRAP lets a stable compiler take the flag. Miri takes a nightly Rust
# (rustup toolchain install nightly -c miri -c rust-src), and is skipped without one. What is not seen is in docs/proof.md.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "$# ${1:-}" in
"0 " | "1 address" | "1 memcheck" | "1 miri") ;;
*) die "usage: scripts/sanitizers.sh [address | memcheck | miri]" ;;
esac
setup_build
host=$(rustc -vV | sed -n 's/^host: //p')

address() {
    # With a target, so that what the compiler itself loads is built without it.
    local built=$CARGO_TARGET_DIR/address dist=$CARGO_TARGET_DIR/address/dist scenario
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Cdebuginfo=line-tables-only" CARGO_PROFILE_RELEASE_STRIP=none CARGO_TARGET_DIR=$built \
        cargo build --release --locked --quiet --target "$host" -p nccl-net-ferrite -p softrnic -p softrnic-cli -p ferrite
    mkdir -p "$dist/lib" "$dist/softrnic" "$dist/bin"
    cp "$built/$host/release/libnccl_net.so" "$dist/lib/libnccl-net.so"
    cp "$built/$host/release/libibverbs.so" "$dist/softrnic/libibverbs.so.1"
    ln -sfn libibverbs.so.1 "$dist/softrnic/libibverbs.so"
    cp "$built/$host/release/ferrite" "$built/$host/release/softrnic" "$dist/bin"
    # What lives as long as the process is never freed, on purpose.
    rm -f "$built"/found.*
    export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:log_path=$built/found
    "$dist/bin/ferrite" verify --plugin "$dist/lib/libnccl-net.so"
    "$dist/bin/ferrite" verify --plugin "$dist/lib/libnccl-net.so" --over fused
    # Faults of ports, paths, queue pairs and cards, and ends that die. A process that the sanitizer ends has died.
    for scenario in $("$dist/bin/ferrite" outlast --list | awk '{print $1}'); do
        "$dist/bin/ferrite" outlast --plugin "$dist/lib/libnccl-net.so" --limit 60 --scenario "$scenario" --format json | tee "$built/said"
        ! grep -q '"how":"died"' "$built/said" || die "$scenario: a process has died"
    done
    # Also what a process says that is ending, when the result is known already.
    ! compgen -G "$built/found.*" >/dev/null || die "$(head -n 40 "$built"/found.*)"
    ran+=(AddressSanitizer)
}

memcheck() {
    command -v valgrind >/dev/null || { echo "skipped: valgrind" && return; }
    [ -x dist/bin/ferrite ] || die "there is no dist/: scripts/build.sh makes it"
    # No report of waits: under valgrind everything waits.
    FERRITE_HANG_SECONDS=0 valgrind --quiet --error-exitcode=9 --trace-children=yes dist/bin/ferrite solo --plugin dist/lib/libnccl-net.so \
        --size 65536 --messages 100
    ran+=(memcheck)
}

# miri_of NAME FILTER...: those unit tests of the crate $alone.
miri_of() {
    (cd "$alone" && CARGO_TARGET_DIR=$CARGO_TARGET_DIR/miri MIRIFLAGS=-Zmiri-disable-isolation RUST_BACKTRACE=0 \
        cargo +nightly miri test --quiet --lib -- "$@")
}

miri() {
    cargo +nightly miri --version >/dev/null 2>&1 || { echo "skipped: Miri (rustup toolchain install nightly -c miri -c rust-src)" && return; }
    # The guard of the data path alone: the rest of the plugin makes system calls that Miri does not know.
    local alone=$CARGO_TARGET_DIR/miri/alone
    rm -rf "$alone"
    mkdir -p "$alone/src/net/control" "$alone/src/net/data"
    cp src/error.rs "$alone/src"
    cp src/net/control/{state_word,sync}.rs "$alone/src/net/control"
    cp src/net/data/exclusive_cell{,_tests}.rs "$alone/src/net/data"
    cp Cargo.lock "$alone"
    cat >"$alone/src/lib.rs" <<'END'
//! The guard of the data path without the rest of the plugin.
#![allow(dead_code)]
mod error;
pub mod net {
    pub mod control {
        pub mod state_word;
        pub mod sync;
    }
    pub mod data {
        pub mod exclusive_cell;
        #[cfg(test)]
        mod exclusive_cell_tests;
    }
}
END
    cat >"$alone/Cargo.toml" <<'END'
[workspace]
[package]
name = "guard"
version = "0.1.0"
edition = "2024"
[dependencies]
libc = "0.2"
log = "0.4"
END
    miri_of exclusive_cell
    ran+=(Miri)
}

ran=()
for tool in ${1:-address memcheck miri}; do "$tool"; done
[ ${#ran[@]} -gt 0 ] || exit 77
echo "nothing found by: ${ran[*]}"
