#!/usr/bin/env bash
# All tests: formatting, lints, documentation, then every test of the workspace. The last line is the sum.
#
#   scripts/test.sh            everything that is tested for every change
#   scripts/test.sh --quick    for a developer, in a minute on a built tree: without lints, documentation, the virtual machine,
#                              other NCCL releases and the tests that take longest
#   scripts/test.sh --tests    only the tests, of what scripts/build.sh has built
#
# scripts/nightly.sh is deeper; scripts/repeat.sh runs the tests again and again.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

mode=${1:-all}
case "$# $mode" in
"0 all" | "1 --quick" | "1 --tests") ;;
*) die "usage: scripts/test.sh [--quick | --tests]" ;;
esac

install_components
install_nextest

step() { printf '\n== %s\n' "$*"; }

# A newer compiler has newer lints and another idea of layout: what it says is shown, but only this one's word is law.
deny=""
case "$(rustc --version)" in "rustc 1.95."*) deny="-D warnings" ;; esac

if [ "$mode" != --tests ]; then
    step build
    scripts/build.sh

    # The tests drive it as well; each release is fetched once (0.8 GB in all) and kept outside of this repository.
    step "stock NCCL"
    releases=(2.21.5 2.28.9 2.30.7)
    [ "$mode" = all ] || releases=(2.21.5)
    for release in "${releases[@]}"; do
        dist/bin/ferrite wheel "$release"
    done
fi

if [ "$mode" = all ]; then
    step format
    cargo fmt --all --check || [ -z "$deny" ]

    step lints
    # shellcheck disable=SC2086
    cargo clippy --workspace --all-targets --locked --quiet -- $deny
    # shellcheck disable=SC2086
    cargo clippy -p softrnic --lib --features tools --locked --quiet -- $deny

    step documentation
    RUSTDOCFLAGS=$deny cargo doc --workspace --no-deps --locked --quiet

    # Where there can be none, its tests say so themselves.
    step "virtual machine with soft-RoCE"
    tests/rxe/setup.sh || [ $? = 77 ]
fi

step tests
export FERRITE_DIST=$ROOT/dist
status=0
sums=()

# run_tests PROFILE: those of a profile of .config/nextest.toml.
run_tests() {
    rm -rf "$CARGO_TARGET_DIR/nextest/$1"
    cargo nextest run --workspace --locked --profile "$1" || status=$?
    sums+=("$CARGO_TARGET_DIR/nextest/$1/junit.xml")
}

if [ "$mode" = --quick ]; then
    run_tests quick
else
    run_tests default
    # The software device once more, with every copy staged as in a container: the tests that move data (scripts/nightly.sh: all).
    SOFTRNIC_STAGED=1 run_tests staged
fi

# What is missing on somebody's machine must not be missing where the project itself is tested.
printf '\n'
scripts/summary.py "${sums[@]}" || status=1
exit "$status"
