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
rm -rf "$alone"
mkdir -p "$alone/src" "$alone/docs" "$alone/tests/fuzz" "$alone/.config" "$alone/.cargo"
cp -R src/proto src/error.rs "$alone/src"
cp -R tests/fuzz/corpus "$alone/tests/fuzz"
cp docs/schedules.md "$alone/docs"
cp Cargo.lock "$alone"

cat >"$alone/src/lib.rs" <<'END'
//! The protocol without the rest of the plugin.
mod error;
pub mod proto;
END

cat >"$alone/Cargo.toml" <<'END'
[workspace]
[package]
name = "proto"
version = "0.1.0"
edition = "2024"
[lib]
doctest = false
[lints.rust]
unexpected_cfgs = "allow"
[dependencies]
libc = "0.2"
[dev-dependencies]
proptest = { version = "1", default-features = false, features = ["std"] }
# What a change takes to compile is the same, and its tests take a third of the time.
[profile.dev]
opt-level = 1
debug = false
[profile.dev.package."*"]
opt-level = 2
END

# What takes long comes last, and the first failure ends a run. A test that a change has made endless is ended.
cat >"$alone/.config/nextest.toml" <<'END'
[profile.default]
fail-fast = true
slow-timeout = { period = "20s", terminate-after = 2 }
status-level = "fail"
final-status-level = "none"
[[profile.default.overrides]]
filter = "test(/^proto::(sim|control::sim|recv_single|malformed_input|recovery::machine::tests::hostile)::/)"
priority = -50
[[profile.default.overrides]]
filter = "test(/^proto::(fuzz|explain::model|send_single|recovery::machine::tests::explorer)::/) + test(/the_page_says/)"
priority = -100
slow-timeout = { period = "120s", terminate-after = 2 }
END

# Without the tests' own parts: simulators, the fuzzer's choices, random numbers, names of events for a page.
cat >"$alone/.cargo/mutants.toml" <<'END'
exclude_globs = ["src/error.rs", "src/proto/fuzz.rs", "src/proto/random.rs", "src/proto/malformed_input.rs", "src/proto/control/plane/visited.rs", "**/sim/**", "**/tests/**"]
# Functions that there are for tests only.
exclude_re = ["ControlPool::len", "::(most_pending|pending_bytes|inbox_len|most_kept|submit_either|poll_cts|attempt|take_reads)\\b"]
test_tool = "nextest"
END

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
