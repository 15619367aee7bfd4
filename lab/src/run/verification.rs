//! One transport, verified over one connection, over two at once and over fused devices.

use std::fmt;

use crate::error::{Error, Result};
use crate::measure::plan::{Job, LARGEST, Task};
use crate::nccl::library::{self, Source};
use crate::nccl::stock_library;
use crate::run::session::{Runner, Session};
use crate::verbs::libibverbs::Verbs;

/// Sizes of streamed messages: around words, cache lines, pages and stripes of 128 bytes, odd ones, and past the largest.
pub(crate) const STREAMED: [usize; 10] = [1, 3, 8, 129, 4097, 16384 - 8, 65537, 1_000_003, LARGEST, LARGEST + 129];
/// The message size of the long stream.
pub(crate) const LONG: usize = 64 << 10;

/// NCCL's settings by which a user has devices merged.
const MERGE_SETTINGS: [&str; 2] = ["NCCL_NET_FORCE_MERGE", "NCCL_NET_MERGE_LEVEL"];

/// What the connections of a verification lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One connection each way, each rank on its device.
    Single,
    /// Two at once, on the first two devices.
    Parallel,
    /// One each way over two devices that are made into one.
    Fused,
}

impl Topology {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Single, Self::Parallel, Self::Fused];

    /// Why it cannot be tried with this transport on this machine.
    ///
    /// # Errors
    /// Those of [`stock_library::verify`] and [`library::require_plugin`].
    pub(crate) fn obstacle(self, source: &Source) -> Result<Option<String>> {
        if self != Self::Fused {
            return Ok(None);
        }
        // A plugin merges what the user wants merged; the built-in transports merge what they are told to.
        let is_wanted = MERGE_SETTINGS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        let later = match source {
            Source::Stock { nccl } => stock_library::verify(nccl)?.interface > 8,
            Source::Plugin { path, abi } => is_wanted && library::require_plugin(path, *abi)? > 8,
            Source::Loader { nccl, .. } => is_wanted && stock_library::verify(nccl)?.interface > 8,
        };
        // Version 8 has no call for it: the transport itself looks for ports of one card.
        let links = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
        if later || links.map(|entry| entry.path().join("device")).any(|conn: std::path::PathBuf| conn.exists()) {
            return Ok(None);
        }
        Ok(Some("it looks for the ports of one card in /sys/class/infiniband, which names no cards".into()))
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Single => "single",
            Self::Parallel => "parallel",
            Self::Fused => "fused",
        })
    }
}

/// What to verify.
#[derive(Debug, Clone)]
pub(crate) struct VerifyRequest {
    /// The transport.
    pub(crate) source: Source,
    /// Another build of it, for rank 1.
    pub(crate) peer: Option<Source>,
    /// The libibverbs.
    pub(crate) verbs: Verbs,
    /// Device index of each rank, for [`Topology::Single`].
    pub(crate) devices: [Option<usize>; 2],
    /// Messages of a long stream each way instead of everything else; not for [`Topology::Parallel`].
    pub(crate) long: Option<u64>,
}

impl VerifyRequest {
    /// Runs the checks in a fresh pair of processes. `begin` hears what rank 0 is about to do.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. A wrong byte is no error here: it is counted.
    pub(crate) fn run(&self, over: Topology, runner: &Runner, begin: &mut dyn FnMut(&str)) -> Result<Session> {
        let sizes = STREAMED.to_vec();
        let task = match (over, self.long) {
            (Topology::Parallel, Some(_)) => {
                return Err(Error::Usage("a long stream has one connection each way".into()));
            }
            (Topology::Parallel, None) => Task::Parallel { sizes },
            (_, Some(messages)) => Task::Long { bytes: LONG, messages },
            (_, None) => Task::Verify { sizes },
        };
        let job = Job {
            source: self.source.clone(),
            peer: self.peer.clone(),
            verbs: self.verbs.clone(),
            devices: self.devices,
            fused: over == Topology::Fused,
            slice_ms: 0,
            variables: Vec::new(),
            streams: 1,
            tasks: vec![task],
        };
        runner.run(&job, begin)
    }
}
