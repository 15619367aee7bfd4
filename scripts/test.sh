#!/usr/bin/env bash
# All tests: formatting, lints, documentation, then every test of the workspace. The last line is the sum.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

install_components

step() { printf '\n== %s\n' "$*"; }

step build
scripts/build.sh

# The tests drive it as well; each release is fetched once (0.8 GB in all) and kept outside of this repository.
step "stock NCCL"
for release in 2.21.5 2.28.9 2.30.7; do
    dist/bin/ferrite wheel "$release"
done

# A newer compiler has newer lints and another idea of layout: what it says is shown, but only this one's word is law.
deny=""
case "$(rustc --version)" in "rustc 1.95."*) deny="-D warnings" ;; esac

step format
cargo fmt --all --check || [ -z "$deny" ]

step lints
# shellcheck disable=SC2086
cargo clippy --workspace --all-targets --locked --quiet -- $deny
# shellcheck disable=SC2086
cargo clippy -p softrnic --features tools --all-targets --locked --quiet -- $deny

step documentation
RUSTDOCFLAGS=$deny cargo doc --workspace --no-deps --locked --quiet

# Where there can be none, its tests say so themselves.
step "virtual machine with soft-RoCE"
tests/rxe/setup.sh || [ $? = 77 ]

step tests
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
FERRITE_DIST=$ROOT/dist cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log" || status=$?

# The software device once more, with every copy staged as in a container: the tests that move data (scripts/nightly.sh: all).
moving=$(printf -- '--test %s ' atomics channels churn completions data draining errors gpu kill rules semantics staged states)
# shellcheck disable=SC2086
SOFTRNIC_STAGED=1 FERRITE_DIST=$ROOT/dist cargo test -p softrnic --locked --no-fail-fast $moving 2>&1 | tee -a "$log" || status=$?

# libtest prints one line per test binary: add them up. A test that cannot run here says `skipped: why`.
printf '\n'
skipped=$(grep -c 'skipped: ' "$log" || true)
awk -v skipped="$skipped" '/^test result:/ { passed += $4; failed += $6 }
    END { printf "%d passed, %d failed, %d skipped\n", passed - skipped, failed, skipped }' "$log"
# What is missing on somebody's machine must not be missing where the project itself is tested.
if [ "${CI:-}" = true ] && [ "$skipped" != 0 ]; then
    status=1
fi
exit "$status"
