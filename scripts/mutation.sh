#!/usr/bin/env bash
# Changes the protocol in every way that cargo-mutants knows, one at a time, and sees whether its tests notice. The sources are changed
# in copies, and built without the rest of the plugin, which they do not use.
#
#   scripts/mutation.sh                        all: some hours of processor time; goes on where the last run was ended
#   scripts/mutation.sh --file 'src/proto/stripe.rs'        what cargo-mutants takes is passed on
#
# It takes cargo-mutants (cargo install --locked cargo-mutants) and cargo-nextest. JOBS is how many changes are tried at once, by default
# one for each processor. What was found lies in $CARGO_TARGET_DIR/mutation: of changes that are caught, it is not tried again, unless
# the folder is removed. Ends with 1 if a change is missed that docs/proof.md does not judge.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
setup_build
cargo mutants --version >/dev/null 2>&1 || die "cargo-mutants is missing: cargo install --locked cargo-mutants"

found=$CARGO_TARGET_DIR/mutation
alone=$found/alone
scripts/protocol_alone.sh "$alone"

export CARGO_BUILD_JOBS=1 NEXTEST_TEST_THREADS=1 CARGO_INCREMENTAL=1
# More schedules than with every change.
export FERRITE_SIM_SEEDS=2000
export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=true
# Each copy has a folder of its own for what it builds.
unset CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG
# A change that takes memory without end is ended.
ulimit -v $((8 << 20))
# Without this, a copy that does not compile, or whose tests fail, would pass for one in which every change is noticed.
(cd "$alone" && cargo nextest run --cargo-quiet) ||
    die "the protocol alone does not pass its tests: nothing can be said of changes"
cargo mutants --dir "$alone" --output "$found" --iterate --jobs "${JOBS:-$(nproc)}" --baseline "${BASELINE:-skip}" \
    --timeout 900 --build-timeout 300 --cap-lints true --shuffle --colors never "$@" || case $? in
2 | 3) ;;
*) die "cargo mutants has failed" ;;
esac

scripts/mutation_summary.py "$found/mutants.out" docs/proof.md
