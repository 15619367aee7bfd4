#!/usr/bin/env bash
# What takes too long for every change: more than a million schedules of the protocol, many more inputs for every decoder of a peer's
# bytes, small changes of the protocol, all of NCCL's contract with its long checks, and processes killed a thousand times.
#
#   scripts/nightly.sh           all steps: some five hours on two cores
#   scripts/nightly.sh WORDS     those whose title has these words
#   scripts/nightly.sh --list    only their titles
#
# A step that fails does not end it. The last lines tell how long each step took and which have failed; the exit status is 1 then.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
[ $# -le 1 ] || die "usage: scripts/nightly.sh [WORDS | --list]"
words=${1:-}

# -- what steps have in common --

# tests PROFILE ARGUMENT...: those of a profile of .config/nextest.toml, and their sum. Where the project itself is tested, none may be skipped.
tests() {
    FERRITE_DIST=$ROOT/dist cargo nextest run --workspace --locked --profile "$@"
    scripts/summary.py "target/nextest/$1/junit.xml"
}

# protocol ARGUMENT...: tests of the protocol, compiled with optimisation.
protocol() { cargo test --release -p ferrite-proto --lib --locked --quiet "$@"; }

# or_skipped COMMAND...: 77 says that something is missing here, which the command has named.
or_skipped() { "$@" || [ $? = 77 ]; }

ferrite() { dist/bin/ferrite "$@"; }

# -- steps --

# As in scripts/test.sh, newer compilers have newer lints: those of this one are errors.
errors=()

other_lints() {
    cargo clippy -p softrnic --lib --features tools --locked --quiet -- "${errors[@]}"
    cargo clippy -p models --all-targets --locked --quiet -- "${errors[@]}"
    command -v shellcheck >/dev/null || { echo "skipped: shellcheck" && return; }
    git ls-files -z '*.sh' | xargs -0 shellcheck --severity=warning --external-sources --source-path=SCRIPTDIR
}

documentation() { RUSTDOCFLAGS=${errors[*]} cargo doc --workspace --no-deps --document-private-items --locked --quiet; }

site() {
    local mdbook
    mdbook=$(install_mdbook)
    scripts/book.py --mdbook "$mdbook"
}

dependencies() {
    local deny
    deny=$(install_deny)
    "$deny" check licenses bans sources
    # The list of known weaknesses is fetched.
    if "$deny" fetch db; then "$deny" check advisories; else echo "skipped: the database of advisories cannot be fetched"; fi
}

# Other seeds each night.
schedules() { scripts/schedules.py 200000 --first $((RANDOM * 200000)); }

orders_of_events() { FERRITE_EXPLORE=all protocol -- --nocapture every_order_of_events; }

orders_of_steps() { FERRITE_EXPLORE=all cargo test --release -p models --locked --quiet; }

decoders() { PROPTEST_CASES=200000 protocol; }

all_values() { FERRITE_EXHAUSTIVE=1 protocol -- exhaustive every_weight inputs_that_are_kept; }

# Each night another sixteenth of all changes (.cargo/mutants.toml). What survives is in its output; it is for a reader to judge, and fails nothing.
changes() {
    local mutants code=0
    mutants=$(install_mutants)
    # A change that takes memory without end is ended.
    ulimit -v $((8 << 20))
    env -u CARGO_TARGET_DIR PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=true \
        "$mutants" mutants --package ferrite-proto --shard "$((10#$(date +%j) % 16))/16" --jobs "$(nproc)" --output "$CARGO_TARGET_DIR" --colors never || code=$?
    # 2: some survive. 3: the tests of some do not end.
    [[ $code =~ ^[023]$ ]]
}

contract() {
    for link in roce ib; do
        for rails in 1 2; do
            ferrite check --plugin dist/lib/libnccl-net.so --link "$link" --rails "$rails" --long
        done
        for version in 9 10 11 12; do
            ferrite check --plugin dist/lib/libnccl-net.so --abi "$version" --link "$link"
        done
    done
}

drivers() {
    for driver in bnxt_re erdma hns ionic irdma mana mlx5 mlx5-cx4 mlx5-cx5 mlx5-cx6 mlx5-cx6dx mlx5-cx8 rxe; do
        SOFTRNIC_DRIVER=$driver ferrite check --plugin dist/lib/libnccl-net.so
        SOFTRNIC_DRIVER=$driver ferrite verify --plugin dist/lib/libnccl-net.so
    done
    # 800 Gb/s.
    SOFTRNIC_DRIVER=mlx5-cx8 ferrite check --plugin dist/lib/libnccl-net.so --link ib
    SOFTRNIC_DRIVER=mlx5-cx8 SOFTRNIC_LINK=ib ferrite verify --plugin dist/lib/libnccl-net.so
}

# What some cards and kernels do otherwise (softrnic/docs/cards.md), one by one with some faults, and all of it at once with each
# fault after which a stream goes on.
variants() {
    local one settings faults some=flap-both,flaps-two-ports,port-down,late-write,replay-fault,qp-error,gid-moved,random each
    each=$(ferrite outlast --list | awk '$1 !~ /^kill-/ { print $1 }' | paste -sd ,)
    for one in RNR_PLACES=1 "STALE_COMPLETIONS=1 QPN_REUSE=1" RESOLVE_MS=1000 OWN_PORT_DOWN=fails FLUSH_ONLY=1 ENDLESS_RETRIES=1 GRANT_MORE=1 GIDS=vlan \
        "ZERO_KEYS=1 ERROR_DROPS=1" "PATHS=4 PATH_US=200" "DRIVER=rxe GIDS=vlan GRANT_MORE=1 QPN_REUSE=1 ZERO_KEYS=1 ERROR_DROPS=1"; do
        echo "$one"
        read -ra settings <<<"$one"
        case "$one" in *rxe*) faults=$each ;; *) faults=$some ;; esac
        (
            export "${settings[@]/#/SOFTRNIC_}"
            ferrite check --plugin dist/lib/libnccl-net.so
            ferrite outlast --plugin dist/lib/libnccl-net.so --scenario "$faults" --finish
        )
    done
}

# The system's own driver libraries: what takes too long for the tests of each change.
providers() {
    local provider release fault beneath
    for provider in mlx5 bnxt_re erdma; do
        beneath=(dist/bin/softrnic run --provider "$provider" --same-card --time-scale 0.05)
        "${beneath[@]}" -- dist/bin/ferrite check --verbs system
        "${beneath[@]}" -- dist/bin/ferrite verify --verbs system
        for release in 2.21.5 2.28.9 2.30.7 2.32.3; do
            # These ask for queue pairs without receives, which erdma refuses: a test expects that.
            [[ "$provider $release" != "erdma 2.3"* ]] || continue
            "${beneath[@]}" -- dist/bin/ferrite verify --verbs system --over single --stock "$release"
        done
        for fault in "port-down=1500ms device=softrnic0/1 message=500 times=1" "qp-error message=500 times=1" "drop chance=0.01"; do
            "${beneath[@]}" --faults "$fault" -- dist/bin/ferrite verify --verbs system --over single --long 40000
        done
    done
}

# Other cases each night.
injections() { scripts/hang_injections.py --cases 60 --seed "$RANDOM" --most 32 --out target/hang-injections; }

features() {
    cargo nextest run -p nccl-net-ferrite --features "$ALL_FEATURES" --locked --lib --profile features
    scripts/summary.py target/nextest/features/junit.xml
    cargo build -p nccl-net-ferrite --features "$ALL_FEATURES" --locked --quiet
    cp target/debug/libnccl_net.so target/nextest/features/libnccl-net.so
    ferrite check --plugin target/nextest/features/libnccl-net.so
}

long_tests() {
    for release in 2.20.5 2.21.5 2.25.1 2.27.5 2.28.9 2.29.7 2.30.7 2.31.2 2.32.3; do
        ferrite wheel "$release"
    done
    tests default --ignore-default-filter -E 'not (default() + binary(rxe))'
}

many_connections() {
    local code=0
    scripts/connections.py dist --idle 60 || code=1
    scripts/connections.py dist --counts 1000 --command-us 0 --rounds 1 --singles 0 --releases '' --idle 600 || code=1
    dist/bin/ferrite outlast --plugin dist/lib/libnccl-net.so --limit 30 --lasting 70s --fault 'line silent 60s' --at 1s --finish || code=1
    scripts/connections.py dist --faults 2000 --command-us 0,300 || code=1
    return "$code"
}

staged() { SOFTRNIC_STAGED=1 FERRITE_DIST=$ROOT/dist cargo nextest run --workspace --locked --profile nightly -E 'package(softrnic) + package(softrnic-cli)'; }

soft_roce() { FERRITE_DEEP=1 tests nightly -E 'binary(rxe)'; }

falling_ports() { FERRITE_DEEP=1 tests nightly -E 'binary(recovery) & (test(many_flaps) | test(half_a_minute))'; }

# A table, and no limit: a change of it is for a reader to judge.
instructions() { scripts/instructions.sh 2.21.5,2.32.3; }

programs_from_pypi() {
    or_skipped softrnic/scripts/pypi_clients.py
    or_skipped softrnic/scripts/pypi_clients.py --faults 'drop chance=0.01'
}

# Both at once, since they wait for most of the time.
faults() {
    local said random code=0
    said=$(mktemp)
    dist/bin/ferrite outlast --plugin dist/lib/libnccl-net.so --scenario random --reps 65 --finish >"$said" 2>&1 &
    random=$!
    # What is begun so is not ended by an interrupt.
    # shellcheck disable=SC2064
    trap "kill $random 2>/dev/null || true; rm -f '$said'" EXIT
    scripts/endurance.py 60 || code=1
    wait "$random" || { code=1 && cat "$said"; }
    echo "random faults: $(grep -c '; 0 wrong bytes$' "$said" || true) times a minute without a wrong byte"
    return $code
}

# Programs that were not written here read the packages: skopeo the image, CycloneDX's library the bill of materials.
other_readers() {
    local work python
    work=$(mktemp -d)
    ! may_install || command -v skopeo >/dev/null || install_packages skopeo
    if command -v skopeo >/dev/null; then
        # All blobs are read, and their sums compared; what a registry would get is written.
        skopeo copy --quiet "oci-archive:$(compgen -G 'packages/nccl-net-ferrite-*-image.tar')" "dir:$work/copy"
        [ -s "$work/copy/manifest.json" ] || die "skopeo has copied no manifest"
    else
        echo "skipped: skopeo"
    fi
    rm -rf "$work"
    install_python_tools scripts/bom.txt
    python=$(python_tools scripts/bom.txt)/bin/python
    [ -x "$python" ] || { echo "skipped: what scripts/bom.txt lists" && return; }
    "$python" - packages/nccl-net-ferrite-*.cdx.json <<'END'
import json, pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = pathlib.Path(sys.argv[1]).read_text()
problem = JsonStrictValidator(SchemaVersion.from_version(json.loads(text)["specVersion"])).validate_str(text)
sys.exit(f"{sys.argv[1]}: {str(problem).splitlines()[0]}" if problem else 0)
END
}

packages() {
    scripts/package.sh
    for built in packages/built dist; do
        (cd scripts && FERRITE_DIST=$ROOT/$built python3 -m tests --jobs 1 --junit ../target/python/packages.xml tests.test_package)
        scripts/summary.py target/python/packages.xml
    done
    other_readers
    or_skipped scripts/containers.sh packages
    or_skipped scripts/other_systems.sh packages/built
}

two_hosts() {
    ! may_install || { command -v srun && command -v slurmd && command -v munged; } >/dev/null || install_packages slurmctld slurmd slurm-client munge
    local launchers=() launcher said
    for launcher in mpirun srun; do
        if command -v "$launcher" >/dev/null; then launchers+=("$launcher"); else echo "skipped: $launcher"; fi
    done
    (cd scripts && FERRITE_LAUNCHERS="${launchers[*]}" python3 -m tests --jobs 1 tests.test_two_nodes)
    for launcher in "${launchers[@]}"; do
        # How fast two processes of a busy machine are is not the question.
        said=$(scripts/two_nodes.sh "$launcher" dist/bin/softrnic run -- dist/bin/ferrite doctor --job 2>&1) || true
        grep 'ok *peer-reach' <<<"$said" || die "$launcher: $said"
    done
}

# Reports in a browser: one of `compare`, one of `ab`, and one that is committed.
reports() {
    local folder=target/reports code=0
    ! may_install || command -v chromium-headless-shell >/dev/null || install_packages chromium-headless-shell fonts-dejavu-core
    ferrite compare --seconds 15 --report "$folder/compare" || code=$?
    [[ $code =~ ^[013]$ ]] || return 1
    ferrite judge lab/tests/fixtures/times.json --report "$folder/ab" || return 1
    scripts/browser.py "$folder"/*/report.html lab/tests/fixtures/comparison/report.html
}

# -- all of them --

# steps DO: calls DO TITLE COMMAND... of each.
steps() {
    "$1" "lints of what scripts/test.sh does not compile" other_lints
    "$1" "documentation" documentation
    "$1" "the pages as a site" site
    "$1" "licences and sources of dependencies" dependencies
    "$1" "schedules of all simulators, each with 200,000 seeds" schedules
    "$1" "every order of events of a small connection, with two faults and a break of the control connection" orders_of_events
    "$1" "every order of steps of what threads and processes share without a lock" orders_of_steps
    "$1" "decoders" decoders
    "$1" "all values, and sequence numbers that wrap" all_values
    "$1" "fuzzing" scripts/fuzz.py 100
    "$1" "small changes of the protocol" changes
    "$1" "instructions per message, beside NCCL's" instructions
    "$1" "NCCL's contract" contract
    "$1" "reports in a browser" or_skipped reports
    "$1" "UCCL's plugin as a side of the comparison" or_skipped scripts/uccl.sh
    "$1" "the contract, and every byte, on devices as each driver with reliable connections has them" drivers
    "$1" "the contract, and faults, on devices that do what some cards and kernels do otherwise" variants
    "$1" "the contract, every byte, and faults on the system's own driver libraries" providers
    "$1" "processes, paths and cards held up at random, and what the hang report says of them" injections
    "$1" "the plugin with all features" features
    "$1" "tests that take too long for every change" long_tests
    "$1" "the software device with staged copies" staged
    "$1" "RDMA programs from PyPI on the software device, also with loss" programs_from_pypi
    "$1" "many connections: set-up, memory, idle cost; a port down, a card away, no control network" many_connections
    "$1" "soft-RoCE, Ferrite and NCCL's own transport" soft_roce
    "$1" "ports that fall more than five hundred times" falling_ports
    "$1" "an hour of random faults; an hour of falls, stops, kills and connections made anew: nothing grows" faults
    "$1" "AddressSanitizer, ThreadSanitizer, valgrind and Miri" scripts/sanitizers.sh
    "$1" "processes killed" softrnic/scripts/soak.sh 1000
    "$1" "two builds in different folders have the same bits" scripts/package_twice.sh
    "$1" "packages are installed and used, also in containers and on other releases of the system; other programs read them" packages
    "$1" "the last release" or_skipped scripts/compatible.sh
    "$1" "aarch64, emulated" or_skipped scripts/aarch64.sh
    "$1" "two hosts under Open MPI and Slurm: the comparison, with a library in place of NCCL, and doctor --job" two_hosts
}

title() { echo "$1"; }

ended=() failed=()
# step TITLE COMMAND...: runs it, if it is one of those that are wished.
step() {
    [[ $1 == *"$words"* ]] || return 0
    printf '\n== %s\n' "$1"
    local began=$SECONDS code
    # In a condition, `set -e` would not be heeded.
    set +e
    (
        set -e
        trap 'exit 130' INT
        "${@:2}"
    )
    code=$?
    set -e
    ended+=("$(printf '%6d s  %s' $((SECONDS - began)) "$1")")
    [ "$code" = 0 ] || failed+=("$1")
}

if [ "$words" = --list ]; then
    steps title
    exit
fi
[[ $(steps title) == *"$words"* ]] || die "no step has '$words' in its title; --list tells the titles"
# A program that ends by itself when it is interrupted would end its step alone.
trap 'exit 130' INT
setup_tests
case "$(rustc --version)" in "rustc 1.95."*) errors=(-D warnings) ;; esac
scripts/build.sh
steps step

printf '\n'
printf '%s\n' "${ended[@]}"
[ "${#failed[@]}" = 0 ] || die "failed:$(printf ' %s;' "${failed[@]}")"
echo "all well"
