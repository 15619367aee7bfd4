#!/usr/bin/env bash
# A thousand rounds of kill -9 at random points of an exchange between two processes; what is checked after each is
# said in tests/kill.rs. Prints the seed, so that a round that fails can be played again.
#
#   tools/softrnic/scripts/soak.sh [ROUNDS [SEED]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

rounds=${1:-1000}
seed=${2:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

cargo test --release -p softrnic --test kill --no-run --quiet
begin=$(date +%s)
if ! SOFTRNIC_KILL_ROUNDS=$rounds SOFTRNIC_KILL_SEED=$seed \
    cargo test --release -p softrnic --test kill --quiet -- --nocapture >"$log" 2>&1; then
    tail -n 40 "$log"
    echo "FAILED: seed $seed, $(grep -c '^round ' "$log") rounds begun"
    exit 1
fi
sed -n '/^[0-9]* rounds, seed /,/modelled/p' "$log"
echo "all well in $(($(date +%s) - begin)) s"
