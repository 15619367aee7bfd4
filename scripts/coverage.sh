#!/usr/bin/env bash
# How much of the code the tests run: all is built with counters (-C instrument-coverage), every test runs but those in the virtual
# machine, and the lines that were run are counted. What a process has counted is lost where it is killed, so this is the least.
#
#   scripts/coverage.sh          half an hour on two cores
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# = 0 ] || die "usage: scripts/coverage.sh"
setup_tests
tools=$(rustc --print target-libdir)/../bin
if [ ! -x "$tools/llvm-profdata" ]; then
    command -v rustup >/dev/null || die "missing: llvm-profdata and llvm-cov of this Rust (rustup component add llvm-tools)"
    rustup component add llvm-tools
fi

# Of its own, since the flags are others. Processes of one binary add up in one of four files.
export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/coverage RUSTFLAGS="-C instrument-coverage"
counts=$CARGO_TARGET_DIR/counts
rm -rf "$counts"
# What the compiler runs while it builds counts nothing.
export LLVM_PROFILE_FILE=/dev/null
export FERRITE_DIST=$CARGO_TARGET_DIR/dist
scripts/build.sh --into "$FERRITE_DIST"
cargo nextest run --workspace --locked --no-run

export LLVM_PROFILE_FILE=$counts/%4m.profraw
# Some hold that nothing but the code itself runs in a thread, which the counters are in the way of.
cargo nextest run --workspace --locked --no-fail-fast -E 'not binary(rxe)' --test-threads $(($(nproc) + 1)) || echo "not all were green"

unset LLVM_PROFILE_FILE
objects=()
while read -r file; do
    objects+=(--object "$file")
done < <(
    find "$FERRITE_DIST" -type f
    ls "$CARGO_TARGET_DIR"/debug/{ferrite,softrnic}
    cargo nextest list --workspace --locked --list-type binaries-only --message-format json |
        python3 -c 'import json, sys; [print(one["binary-path"]) for one in json.load(sys.stdin)["rust-binaries"].values()]'
)
# A file that a killed process has left half written is passed over.
"$tools/llvm-profdata" merge --sparse --failure-mode=all -o "$counts/all.profdata" "$counts"/*.profraw
"$tools/llvm-cov" export --format=lcov --instr-profile "$counts/all.profdata" "${objects[@]}" >"$counts/all.lcov" 2>"$counts/log"
scripts/coverage.py "$counts/all.lcov"
