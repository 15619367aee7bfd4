#!/usr/bin/env bash
# A thousand rounds of kill -9 at random points of an exchange between two processes, then at hundreds of places inside one
# post of each kind; what is checked after each death is said in tests/kill.rs and tests/cut.rs. Prints the seed, so that a
# round that fails can be played again.
#
#   softrnic/scripts/soak.sh [ROUNDS [SEED]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

rounds=${1:-1000}
seed=${2:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
places=250
log=$(mktemp)
trap 'rm -f "$log" "$log.cut"' EXIT

cargo test --release -p softrnic --test kill --test cut --no-run --quiet
begin=$(date +%s)
if ! SOFTRNIC_KILL_ROUNDS=$rounds SOFTRNIC_KILL_SEED=$seed \
    cargo test --release -p softrnic --test kill --quiet -- --nocapture >"$log" 2>&1; then
    tail -n 40 "$log"
    echo "FAILED: seed $seed, $(grep -c '^round ' "$log") rounds begun"
    exit 1
fi
SOFTRNIC_KILL_POINTS=$places cargo test --release -p softrnic --test cut --quiet >"$log.cut" 2>&1 ||
    { tail -n 40 "$log.cut" && echo "FAILED: a post that was cut short" && exit 1; }
sed -n '/^[0-9]* rounds, seed /,/modelled/p' "$log"
echo "and at $places places of a post of each kind"
echo "all well in $(($(date +%s) - begin)) s"
