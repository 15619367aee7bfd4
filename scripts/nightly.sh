#!/usr/bin/env bash
# What takes too long for every change: a million schedules of the protocol, many more inputs for every decoder of a peer's
# bytes, bugs planted to be found, all of NCCL's contract with its long checks, and processes killed a thousand times.
# The first failure ends it.
#
#   scripts/nightly.sh           five hours on two cores
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_tests

step() { printf '\n== %s\n' "$*"; }

# tests PROFILE ARGUMENT...: those of a profile of .config/nextest.toml, and their sum. Where the project itself is tested, none may be skipped.
tests() {
    FERRITE_DIST=$ROOT/dist cargo nextest run --workspace --locked --profile "$@"
    scripts/summary.py "target/nextest/$1/junit.xml"
}

step build
scripts/build.sh

step "lints of what scripts/test.sh does not compile"
# As in scripts/test.sh, newer compilers have newer lints.
errors=()
case "$(rustc --version)" in "rustc 1.95."*) errors=(-D warnings) ;; esac
cargo clippy -p softrnic --lib --features tools --locked --quiet -- "${errors[@]}"
cargo clippy -p models --all-targets --locked --quiet -- "${errors[@]}"
# scripts/test.sh does not look at what a script takes from another one.
git ls-files -z '*.sh' | xargs -0 shellcheck --severity=warning --external-sources --source-path=SCRIPTDIR

step documentation
RUSTDOCFLAGS=${errors[*]} cargo doc --workspace --no-deps --document-private-items --locked --quiet

step "the pages as a site"
mdbook=$(install_mdbook)
scripts/site.py --mdbook "$mdbook"

step "licences and sources of dependencies"
deny=$(install_deny)
"$deny" check licenses bans sources
# The list of known weaknesses is fetched.
if "$deny" fetch db; then "$deny" check advisories; else echo "skipped: the database of advisories cannot be fetched"; fi

step "a million schedules without a fault, with survivable and with fatal ones; a million of the control plane"
FERRITE_SIM_SEEDS=1000000 cargo test --release -p nccl-net-ferrite --lib --locked --quiet sim::

step "schedules of all simulators, each with 100,000 seeds that were not run before"
scripts/schedules.py 100000 --first $((RANDOM * 100000))

step "every order of events of a small connection, with two faults and a break of the control connection"
FERRITE_EXPLORE=all cargo test --release -p nccl-net-ferrite --lib --locked --quiet -- --nocapture every_order_of_events

step "every order of steps of what threads and processes share without a lock"
FERRITE_EXPLORE=all cargo test --release -p models --locked --quiet

step "decoders"
PROPTEST_CASES=200000 cargo test --release -p nccl-net-ferrite --lib --locked --quiet proto::

step "all values, and sequence numbers that wrap"
FERRITE_EXHAUSTIVE=1 cargo test --release -p nccl-net-ferrite --lib --locked --quiet -- exhaustive every_weight inputs_that_are_kept

step "fuzzing"
scripts/fuzz.py 100

step "planted bugs"
scripts/mutants.sh

step "changes of what is computed on the data path"
if cargo mutants --version >/dev/null 2>&1; then
    for part in stripe imm rail_weights cts cts_window arrival requests; do
        scripts/mutation.sh --file "src/proto/$part.rs" || echo "to be judged in docs/proof.md"
    done
    # Of set-up and data path a sample: what half an hour has room for.
    scripts/mutation_plugin.py --seconds 1800 || echo "there is no figure: see above"
    scripts/mutation_summary.py target/mutation-plugin/mutants.out docs/proof.md || echo "to be judged in docs/proof.md"
else
    echo "skipped: cargo-mutants"
fi

step "NCCL's contract"
for link in roce ib; do
    for rails in 1 2; do
        dist/bin/ferrite check --plugin dist/lib/libnccl-net.so --link "$link" --rails "$rails" --long
    done
    for version in 9 10 11 12; do
        dist/bin/ferrite check --plugin dist/lib/libnccl-net.so --abi "$version" --link "$link"
    done
done

step "NCCL's contract, and every byte, on devices as each driver with reliable connections has them"
for driver in bnxt_re erdma hns ionic irdma mana mlx5 mlx5-cx4 mlx5-cx5 mlx5-cx6 mlx5-cx6dx mlx5-cx8; do
    SOFTRNIC_DRIVER=$driver dist/bin/ferrite check --plugin dist/lib/libnccl-net.so
    SOFTRNIC_DRIVER=$driver dist/bin/ferrite verify --plugin dist/lib/libnccl-net.so
done
# 800 Gb/s.
SOFTRNIC_DRIVER=mlx5-cx8 dist/bin/ferrite check --plugin dist/lib/libnccl-net.so --link ib
SOFTRNIC_DRIVER=mlx5-cx8 SOFTRNIC_LINK=ib dist/bin/ferrite verify --plugin dist/lib/libnccl-net.so

step "tests that take too long for every change"
for release in 2.20.5 2.21.5 2.25.1 2.27.5 2.28.9 2.30.7 2.32.3; do
    dist/bin/ferrite wheel "$release"
done
tests default --ignore-default-filter -E 'not (default() + binary(rxe))'

step "the software device with staged copies"
SOFTRNIC_STAGED=1 FERRITE_DIST=$ROOT/dist cargo nextest run --workspace --locked --profile nightly -E 'package(softrnic) + package(softrnic-cli)'

step "soft-RoCE, Ferrite and NCCL's own transport"
FERRITE_DEEP=1 tests nightly -E 'binary(rxe)'

step "ports that fall a thousand times"
FERRITE_DEEP=1 tests nightly -E 'binary(recovery) & (test(many_flaps) | test(half_a_minute))'

step "a thousand falls of the only port: nothing grows"
scripts/flaps.py 1000

step "an hour of random faults"
dist/bin/ferrite outlast --plugin dist/lib/libnccl-net.so --scenario random --reps 65 --finish

step "an hour of falls, stops, kills and connections made anew: nothing grows"
scripts/endurance.py 60

step "AddressSanitizer, ThreadSanitizer, valgrind and Miri"
scripts/sanitizers.sh

step "processes killed"
tools/softrnic/scripts/soak.sh 1000

step "packages: two builds in different folders have the same bits"
scripts/package_twice.sh

step "packages: those for old systems are installed and used; other programs read them"
scripts/package.sh
for built in packages/built dist; do
    (cd scripts && FERRITE_DIST=$ROOT/$built python3 -m tests --jobs 1 --junit ../target/python/packages.xml tests.test_package)
    scripts/summary.py target/python/packages.xml
done
scripts/foreign_readers.sh packages || [ $? = 77 ]

step "the last release"
scripts/compatible.sh || [ $? = 77 ]

step "other releases of the system"
scripts/other_systems.sh packages/built || [ $? = 77 ]

step "aarch64, emulated"
scripts/aarch64.sh || [ $? = 77 ]

step "two hosts under Open MPI and Slurm: the comparison, with a library in place of NCCL, and doctor --job"
! may_install || { command -v srun && command -v slurmd && command -v munged; } >/dev/null || install_packages slurmctld slurmd slurm-client munge
launchers=()
for launcher in mpirun srun; do
    if command -v "$launcher" >/dev/null; then launchers+=("$launcher"); else echo "skipped: $launcher"; fi
done
(cd scripts && FERRITE_LAUNCHERS="${launchers[*]}" python3 -m tests --jobs 1 tests.test_two_nodes)
for launcher in "${launchers[@]}"; do
    # How fast two processes of a busy machine are is not the question.
    said=$(scripts/two_nodes.sh "$launcher" dist/bin/softrnic run -- dist/bin/ferrite doctor --job 2>&1) || true
    grep 'ok *peer-reach' <<<"$said" || die "$launcher: $said"
done

echo "all well"
