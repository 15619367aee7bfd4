#!/usr/bin/env bash
# Runs the plugin, the companion and the software device under tools that see what tests do not: memory that is used after it is freed or
# beyond its end (AddressSanitizer), that two threads use at once (ThreadSanitizer), that is read before it is written (valgrind, of dist/),
# and undefined behaviour (Miri, of what makes no system call).
#
#   scripts/sanitizers.sh                               all
#   scripts/sanitizers.sh TOOL                          one of: address, thread, memcheck, miri
#   scripts/sanitizers.sh address|thread --into DIR     builds for it into DIR, and runs nothing
#   scripts/sanitizers.sh address|thread --built DIR    runs what is built there, on a machine without Rust
#
# JOBS is how many scenarios of `ferrite outlast` run at once, by default one for two processors. 77: nothing could be run.
# AddressSanitizer comes with Rust; RUSTC_BOOTSTRAP lets a stable compiler take the flag. ThreadSanitizer takes a standard library that is
# built with it, so a nightly Rust and its sources; so does Miri (rustup toolchain install nightly -c miri -c rust-src). Each is skipped
# without them. llvm-symbolizer or addr2line gives reports the names of functions. What is not seen is in docs/proof.md.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() { die "usage: scripts/sanitizers.sh [address | thread | memcheck | miri] or address|thread --into|--built DIR"; }
into="" built=""
case "$# ${1:-} ${2:-}" in
"0  " | "1 address " | "1 thread " | "1 memcheck " | "1 miri ") ;;
"3 address --into" | "3 thread --into") into=$(realpath -m "$3") ;;
"3 address --built" | "3 thread --built") built=$(realpath -e "$3") ;;
*) usage ;;
esac
[ -n "$built" ] || setup_build
JOBS=${JOBS:-$((($(nproc) + 1) / 2))}

# build_with SANITIZER DIST: as scripts/build.sh lays it out. With a target, so that what the compiler itself loads is built without it.
build_with() {
    local dist=$2 cargo=(cargo) host release flags
    [ "$1" = address ] || cargo=(cargo +nightly -Zbuild-std)
    host=$(rustc -vV | sed -n 's/^host: //p')
    release=$CARGO_TARGET_DIR/$1/$host/release
    # Libraries take the sanitizer's functions from the program that loads them.
    flags="-Zsanitizer=$1 -Clink-arg=-rdynamic -Cdebuginfo=line-tables-only -Cstrip=none"
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags CARGO_TARGET_DIR=$CARGO_TARGET_DIR/$1 "${cargo[@]}" build --release --locked --quiet \
        --target "$host" -p nccl-net-ferrite -p softrnic -p softrnic-cli -p ferrite
    mkdir -p "$dist/lib" "$dist/softrnic" "$dist/bin"
    cp "$release/libnccl_net.so" "$dist/lib/libnccl-net.so"
    cp "$release/libibverbs.so" "$dist/softrnic/libibverbs.so.1"
    ln -sfn libibverbs.so.1 "$dist/softrnic/libibverbs.so"
    cp "$release/ferrite" "$release/softrnic" "$dist/bin"
}

# try FOUND NAME COMMAND...: a command that fails is named in the file FOUND/failed.
try() { "${@:3}" || echo "$2 has ended with $?" >>"$1/failed"; }

# scenario DIST FOUND NAME: one of `ferrite outlast`, on a fabric of its own. A process that the sanitizer ends has died.
scenario() {
    local said=$2/$3.json
    try "$2" "$3" "$1/bin/ferrite" outlast --plugin "$1/lib/libnccl-net.so" --limit 60 --scenario "$3" --format json >"$said" 2>"$2/$3.log"
    [[ $(<"$said") != *'"how":"died"'* ]] || echo "$3: a process has died" >>"$2/failed"
    cat "$said"
}

# run_with SANITIZER DIST: verify, solo, and faults of ports, paths, queue pairs and cards, and ends that die.
run_with() {
    local ferrite=$2/bin/ferrite plugin=$2/lib/libnccl-net.so found=$CARGO_TARGET_DIR/$1/found symbolizer scenarios name
    symbolizer=$(command -v llvm-symbolizer || command -v addr2line) || die "missing: llvm-symbolizer or addr2line"
    rm -rf "$found"
    mkdir -p "$found"
    # What lives as long as the process is never freed, on purpose.
    export ASAN_OPTIONS=external_symbolizer_path=$symbolizer:log_path=$found/report:detect_leaks=0:abort_on_error=0
    # The exit status stays that of the process: what is reported is seen below.
    export TSAN_OPTIONS=external_symbolizer_path=$symbolizer:log_path=$found/report:history_size=4:exitcode=0
    try "$found" verify "$ferrite" verify --plugin "$plugin"
    if "$2/bin/softrnic" run --faithful -- true >/dev/null 2>&1; then
        try "$found" "verify over fused devices" "$2/bin/softrnic" run --faithful --same-card --devices 4 -- \
            "$ferrite" verify --plugin "$plugin" --over fused
    else
        echo "skipped: fused devices (there may be no mount namespaces here)"
    fi
    try "$found" solo "$ferrite" solo --plugin "$plugin" --size 65536 --messages 1000
    scenarios=$("$ferrite" outlast --list)
    while read -r name _; do
        while [ "$(jobs -pr | wc -l)" -ge "$JOBS" ]; do wait -n; done
        scenario "$2" "$found" "$name" &
    done <<<"$scenarios"
    wait
    # Also what a process says that is ending, when the result is known already.
    if [ -e "$found/failed" ] || compgen -G "$found/report.*" >/dev/null; then
        die "$(cat "$found/failed" 2>/dev/null; head -n 60 "$found"/report.* 2>/dev/null)
    All is in $found"
    fi
}

# sanitized SANITIZER
sanitized() {
    local dist=${built:-${into:-$CARGO_TARGET_DIR/$1/dist}}
    [ -n "$built" ] || build_with "$1" "$dist"
    [ -n "$into" ] || run_with "$1" "$dist"
}

address() {
    sanitized address
    ran+=(AddressSanitizer)
}

thread() {
    if [ -z "$built" ] && [ ! -e "$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/Cargo.lock" ]; then
        echo "skipped: ThreadSanitizer (rustup toolchain install nightly -c rust-src)"
        return
    fi
    sanitized thread
    ran+=(ThreadSanitizer)
}

memcheck() {
    command -v valgrind >/dev/null || { echo "skipped: valgrind" && return; }
    [ -x dist/bin/ferrite ] || die "there is no dist/: scripts/build.sh makes it"
    # No report of waits: under valgrind everything waits.
    FERRITE_HANG_SECONDS=0 valgrind --quiet --error-exitcode=9 --trace-children=yes dist/bin/ferrite solo --plugin dist/lib/libnccl-net.so \
        --size 65536 --messages 100
    ran+=(memcheck)
}

# miri_of PACKAGE ARGUMENT...: these unit tests in one process, since it takes Miri half a minute to begin. Fewer cases are tried of what is random.
miri_of() {
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/miri MIRIFLAGS=-Zmiri-disable-isolation RUST_BACKTRACE=0 \
        PROPTEST_CASES=4 PROPTEST_DISABLE_FAILURE_PERSISTENCE=true \
        cargo +nightly miri test --locked --quiet -p "$1" --lib -- "${@:2}"
}

miri() {
    cargo +nightly miri --version >/dev/null 2>&1 || { echo "skipped: Miri (rustup toolchain install nightly -c miri -c rust-src)" && return; }
    # Of what is there without system calls. The first call that Miri does not know ends it.
    miri_of nccl-net-ferrite exclusive_cell
    miri_of ferrite-verbs prepared_write recv_chain work:: the_errno_of_an_earlier
    # The protocol, without what takes Miri minutes: any bytes of a peer's, and simulators, fuzzers and explorers, which try thousands of cases.
    miri_of ferrite-proto {cts,cts_window,endpoint}:: control::{acceptor,losses,redial}:: \
        explain::{ends,inquiry,tests::inquiry,operation,report_times,verdict}:: --skip any_
    # So does any text of a rule.
    miri_of softrnic copy:: host:: network::header shm::
    ran+=(Miri)
}

ran=()
for tool in ${1:-address thread memcheck miri}; do "$tool"; done
[ ${#ran[@]} -gt 0 ] || exit 77
[ -n "$into" ] || echo "nothing found by: ${ran[*]}"
