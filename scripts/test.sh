#!/usr/bin/env bash
# All tests: formatting, lints, then the tests of the workspace, but those that only
# scripts/nightly.sh runs, and of the Python programs. The last line is the sum.
#
#   scripts/test.sh            everything that is tested for every change
#   scripts/test.sh --quick    for a developer, in a minute on a built tree: without lints, the
#                              virtual machine, other NCCL releases and the tests that take longest
#   scripts/test.sh --tests    only the tests, of what scripts/build.sh has built
#
# scripts/nightly.sh is deeper; scripts/repeat.sh runs the tests again and again.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

mode=${1:-all}
case "$# $mode" in
"0 all" | "1 --quick" | "1 --tests") ;;
*) die "usage: scripts/test.sh [--quick | --tests]" ;;
esac

setup_build

# Each step is headed by its name and the time since the script began.
step() { printf '\n== %s (after %d:%02d)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

logs=$(mktemp -d)
declare -A jobs
# Jobs that are left when the script fails are ended, each with its children.
end_jobs() {
    local pid
    for pid in "${jobs[@]}"; do
        kill -- "-$pid" 2>/dev/null || true
    done
    rm -rf "$logs"
}
trap end_jobs EXIT

# background NAME COMMAND...: runs it beside what follows, in a process group of its own.
background() {
    set -m
    ("${@:2}") </dev/null >"$logs/$1" 2>&1 &
    set +m
    jobs[$1]=$!
}

# finish NAME: waits for it, shows what it printed, and returns its exit status.
finish() {
    local code=0
    step "$1"
    wait "${jobs[$1]}" || code=$?
    unset "jobs[$1]"
    cat "$logs/$1"
    return "$code"
}

# A newer compiler has newer lints and another layout. Its warnings are shown, but only those of
# this one are errors.
deny=""
case "$(rustc --version)" in "rustc 1.95."*) deny="-D warnings" ;; esac

# What the tests run: in a folder of its own, since its programs are built without optimisation; an
# optimised build of them takes longest.
dist=$CARGO_TARGET_DIR/dist
[ "$mode" != --tests ] || dist=$ROOT/dist

# Each release is fetched once (1.5 GB in all) and kept outside of this repository.
fetch_nccl() {
    local release
    for release in "$@"; do
        "$dist/bin/ferrite" wheel "$release"
    done
}

# Beside all that comes before the tests: it has long parts that leave a processor idle.
[ "$mode" = --tests ] || background "libraries" scripts/build.sh --libraries "$dist"

setup_tests
background "Python tools" install_python_tools
if [ "$mode" = all ]; then
    # Where there can be no such machine, its tests say so themselves.
    background "virtual machine with soft-RoCE" tests/rxe/setup.sh
fi

# The compiler of clippy gives its lints and compiles as well: all sources are read once, and
# dependencies are built once.
lints=()
if [ "$mode" = all ]; then
    step format
    cargo fmt --all --check || [ -z "$deny" ]
    lints=(env RUSTC_WORKSPACE_WRAPPER=clippy-driver RUSTFLAGS="${RUSTFLAGS:-} $deny")
fi

# python_tests [NAME...]: those of the Python programs, with mypy and ruff, one after the other
# beside those of the workspace; but not those of the packages, which take longest.
python_tests() {
    local python
    python=$(python_tools)/bin/python
    [ -e "$(python_tools)/complete" ] || python=python3
    cd scripts || return
    exec timeout 1200 "$python" -m tests --jobs 1 --but tests.test_package \
        --junit "$python_sums" "$@"
}
python_sums=$CARGO_TARGET_DIR/python/junit.xml
rm -f "$python_sums"

# The plugin of all features: other declarations that must give the same plugin. The points of the
# contract that would show a difference run beside the rest. The others, and its unit tests, for
# which the companion would be built once more, run in scripts/nightly.sh. It comes first: both
# plugins have one file name, and what is built after the other one stays.
if [ "$mode" = all ]; then
    step "build with features"
    "${lints[@]}" cargo build -p nccl-net-ferrite --features "$ALL_FEATURES" --locked
    mkdir -p "$CARGO_TARGET_DIR/features"
    cp "$CARGO_TARGET_DIR/debug/libnccl_net.so" "$CARGO_TARGET_DIR/features/libnccl-net.so"
fi

# All but the explorations with a model checker, which takes longer to build than they do.
crates=(--workspace --exclude models)
step "build of the tests${lints[0]:+, with lints}"
if [ "$mode" != --tests ]; then
    # For these two, cargo builds the programs. One of them fetches stock NCCL beside the rest.
    "${lints[@]}" cargo nextest run "${crates[@]}" --locked \
        --test companion --test command_line --no-run
    scripts/build.sh --programs "$dist"
    if [ "$mode" = all ]; then releases=(2.21.5 2.28.9 2.30.7 2.32.3); else releases=(2.21.5); fi
    background "stock NCCL" fetch_nccl "${releases[@]}"
fi
# Beside the libraries, whose last part takes one processor.
background "build of all tests" \
    "${lints[@]}" cargo nextest run "${crates[@]}" --all-targets --locked --no-run
[ "$mode" = --tests ] || finish libraries
finish "Python tools"
# The tests of the Python programs need no more than the libraries and the programs.
export FERRITE_DIST=$dist
if [ "$mode" = --quick ]; then only=(tests.test_lint); else only=(); fi
background "tests of the Python programs" python_tests "${only[@]}"
finish "build of all tests"
if [ "$mode" = all ]; then
    background "contract of the plugin with features" "$dist/bin/ferrite" check \
        --plugin "$CARGO_TARGET_DIR/features/libnccl-net.so" \
        --only abi-layout,log-lines,every-field-written,handle,loopback,dma-buf,sizes,groups \
        --only gpu-memory,peer-killed,failures-in-traffic,address-change,contexts,merged-devices
fi
[ "$mode" = --tests ] || finish "stock NCCL"
[ "$mode" != all ] || finish "virtual machine with soft-RoCE" || [ $? = 77 ]

step tests
if [ "$mode" = --quick ]; then profile=quick; else profile=default; fi
# Of .config/nextest.toml. nextest writes below target/, whatever CARGO_TARGET_DIR is.
sums=("target/nextest/$profile/junit.xml" "$python_sums")
rm -f "${sums[0]}"
status=0
# Many tests wait for a time limit or for other processes: more of them than processors keep these
# busy.
"${lints[@]}" cargo nextest run "${crates[@]}" --all-targets --locked --profile "$profile" \
    --test-threads $((2 * $(nproc) + 1)) || status=$?
finish "tests of the Python programs" || status=$?
[ "$mode" != all ] || finish "contract of the plugin with features" || status=$?

# What is missing on somebody's machine must not be missing where the project itself is tested.
printf '\n'
scripts/summary.py "${sums[@]}" || status=1
exit "$status"
