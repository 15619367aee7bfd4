//! What the tests of the built plugin share: where it is, and how two processes with it are started.
#![allow(dead_code)]

pub(crate) mod alone;
pub(crate) mod bench;
pub(crate) mod doom;
pub(crate) mod faithful;
pub(crate) mod relay;
pub(crate) mod talk;

use ferrite::library::Source;
use ferrite::pair::Setting;
use ferrite::transport::Transport;
use ferrite::verbs::Verbs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The folder that `scripts/build.sh` fills.
pub(crate) fn dist() -> PathBuf {
    let named = std::env::var_os("FERRITE_DIST").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("dist"))
}

/// The built plugin.
pub(crate) fn plugin() -> PathBuf {
    dist().join("lib/libnccl-net.so")
}

/// Says on the terminal, past the test harness, that a test cannot run here, and why.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Whether a process may have a mount namespace of its own; if not, a line.
pub(crate) fn namespaces() -> bool {
    const PROBE: &str = "m='mount -t tmpfs none /sys/class'; unshare -m $m || unshare -Urm $m";
    let works = Command::new("sh").args(["-c", PROBE]).output().is_ok_and(|output| output.status.success());
    if !works {
        skipped("mount namespaces are not to be had");
    }
    works
}

/// Two processes over the software RDMA device; `None` (and a line) if something has not been built.
pub(crate) fn setting() -> Option<Setting> {
    for part in [plugin(), dist().join("softrnic/libibverbs.so.1")] {
        if !part.exists() {
            skipped(&format!("{} is missing (scripts/build.sh makes it)", part.display()));
            return None;
        }
    }
    let verbs = Verbs::softrnic(&dist().join("softrnic")).expect("it is there");
    let mut setting = Setting::new(verbs);
    setting.silence = Duration::from_secs(30);
    Some(setting.env("FERRITE_HANDSHAKE_TIMEOUT", "20").env("SOFTRNIC_STRICT", "1"))
}

/// The plugin, initialised in this process.
pub(crate) fn plugin_transport() -> ferrite::error::Result<Transport> {
    Transport::open(&Source::plugin(plugin()))
}

/// A byte pattern that differs from message to message and from place to place.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}
