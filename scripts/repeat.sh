#!/usr/bin/env bash
# Runs the tests again and again, to find those that are red by chance: beside a program that keeps every CPU busy, and alone.
# A line for each run; the output of one that fails is kept.
#
#   scripts/repeat.sh [LOADED [ALONE]]    8 runs under load and 3 alone, unless it is told otherwise
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

loaded=${1:-8}
alone=${2:-3}
[[ $# -le 2 && "$loaded $alone" =~ ^[0-9]+\ [0-9]+$ ]] || die "usage: scripts/repeat.sh [LOADED [ALONE]]"

setup_tests
scripts/build.sh
cargo nextest run --workspace --exclude models --all-targets --locked --no-run
logs=$(mktemp -d)
busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
failed=0

# run_once HOW: one run of all tests, and what became of it.
run_once() {
    local log start=$SECONDS
    log=$logs/$((number += 1))
    if CI=true scripts/test.sh --tests >"$log" 2>&1; then
        printf '%-7s %4d s  %s\n' "$1" $((SECONDS - start)) "$(tail -n 1 "$log")"
        rm "$log"
    else
        failed=$((failed + 1))
        printf '%-7s %4d s  %s; see %s\n' "$1" $((SECONDS - start)) "$(tail -n 1 "$log")" "$log"
        grep -E '^ +(FAIL|TIMEOUT|SIG|ABORT)' "$log" | sort -u || true
    fi
}

number=0
for ((i = 0; i < alone; i++)); do
    run_once alone
done
for ((i = 0; i < $(nproc) && loaded > 0; i++)); do
    (while kill -0 $$ 2>/dev/null; do :; done) &
    busy+=($!)
done
for ((i = 0; i < loaded; i++)); do
    run_once loaded
done
echo "$number runs, $failed failed"
[ "$failed" = 0 ]
