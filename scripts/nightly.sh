#!/usr/bin/env bash
# What takes too long for every change: a million schedules of the protocol, many more inputs for every decoder of a peer's
# bytes, bugs planted to be found, all of NCCL's contract with its long checks, and processes killed a thousand times.
# The first failure ends it.
#
#   scripts/nightly.sh           an hour on two cores
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

step() { printf '\n== %s\n' "$*"; }

step build
scripts/build.sh

step "a million schedules"
FERRITE_SIM_SEEDS=1000000 cargo test --release -p nccl-net-ferrite --lib --locked --quiet proto::sim

step "decoders"
PROPTEST_CASES=200000 cargo test --release -p nccl-net-ferrite --lib --locked --quiet proto::

step "planted bugs"
scripts/mutants.sh

step "NCCL's contract"
for link in roce ib; do
    for rails in 1 2; do
        dist/bin/ferrite check --plugin dist/lib/libnccl-net.so --link "$link" --rails "$rails" --long
    done
done

step "the software device with staged copies"
SOFTRNIC_STAGED=1 FERRITE_DIST=$ROOT/dist cargo test -p softrnic --locked --quiet

step "processes killed"
tools/softrnic/scripts/soak.sh 1000

echo "all well"
