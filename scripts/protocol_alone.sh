#!/usr/bin/env bash
# Makes the protocol a package of its own, without the rest of the plugin, which it does not use: for scripts/mutation.sh and
# scripts/mutants.sh. It builds in seconds.
#
#   scripts/protocol_alone.sh FOLDER     FOLDER is made anew
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# = 1 ] || die "usage: scripts/protocol_alone.sh FOLDER"
alone=$1
[ ! -e "$alone" ] || grep -qx 'name = "proto"' "$alone/Cargo.toml" 2>/dev/null || die "$alone is there, and is no such package"
rm -rf "$alone"
mkdir -p "$alone/src" "$alone/docs" "$alone/tests/fuzz" "$alone/.config" "$alone/.cargo"
cp -R src/proto src/error.rs "$alone/src"
cp -R tests/fuzz/corpus "$alone/tests/fuzz"
cp docs/schedules.md "$alone/docs"
cp Cargo.lock rust-toolchain.toml "$alone"

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
filter = "test(/^proto::(sim|control::sim|recv::tests::single|malformed_input|recovery::machine::tests::hostile)::/)"
priority = -50
[[profile.default.overrides]]
filter = "test(/^proto::(fuzz|explain::model|send::tests::single|recovery::machine::tests::explorer)::/) + test(/the_page_says/)"
priority = -100
slow-timeout = { period = "120s", terminate-after = 2 }
# Of a planted bug it has to be certain that a test has noticed it, and not that the machine was busy.
[[profile.planted.overrides]]
filter = "all()"
slow-timeout = { period = "120s", terminate-after = 4 }
END

# Without the tests' own parts: simulators, the fuzzer's choices, random numbers, names of events for a page.
cat >"$alone/.cargo/mutants.toml" <<'END'
exclude_globs = ["src/error.rs", "src/proto/fuzz.rs", "src/proto/random.rs", "src/proto/malformed_input.rs", "src/proto/control/plane/visited.rs", "**/sim/**", "**/tests/**"]
# Functions that there are for tests only.
exclude_re = ["ControlPool::len", "::(most_pending|pending_bytes|inbox_len|most_kept|submit_either|poll_cts|attempt|take_reads)\\b"]
test_tool = "nextest"
END
