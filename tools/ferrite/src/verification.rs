//! One transport, verified over one connection, over two at once and over fused devices.

use std::fmt;

use crate::error::{Error, Result};
use crate::library::Source;
use crate::measure::verify::Check;
use crate::plan::{Job, LARGEST, Task};
use crate::session::{Runner, Session};
use crate::verbs::Verbs;
use crate::wheel;

/// Sizes of streamed messages: around words, cache lines, pages and stripes of 128 bytes, odd ones, and past the largest.
pub const STREAMED: [usize; 10] = [1, 3, 8, 129, 4097, 16384 - 8, 65537, 1_000_003, LARGEST, LARGEST + 129];
/// The message size of the long stream.
pub const LONG: usize = 64 << 10;

/// What the connections of a verification lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// One connection each way, each rank on its device.
    Single,
    /// Two at once, on the first two devices.
    Parallel,
    /// One each way over two devices that are made into one.
    Fused,
}

impl Over {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Single, Self::Parallel, Self::Fused];

    /// Why it cannot be tried with this transport on this machine.
    ///
    /// # Errors
    /// Those of [`wheel::verify`].
    pub fn obstacle(self, source: &Source) -> Result<Option<String>> {
        if self != Self::Fused {
            return Ok(None);
        }
        let later = match source {
            Source::Stock { nccl } => wheel::verify(nccl)?.interface > 8,
            Source::Plugin { .. } | Source::Loader { .. } => false,
        };
        // Version 8, which plugins are asked for, has no call for it: the transport itself looks for ports of one card.
        let links = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
        if later || links.map(|entry| entry.path().join("device")).any(|link: std::path::PathBuf| link.exists()) {
            return Ok(None);
        }
        Ok(Some("it looks for the ports of one card in /sys/class/infiniband, which names no cards".into()))
    }
}

impl fmt::Display for Over {
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
pub struct Request {
    /// The transport.
    pub source: Source,
    /// The libibverbs.
    pub verbs: Verbs,
    /// Device index of each rank, for [`Over::Single`].
    pub devices: [Option<usize>; 2],
    /// Messages of a long stream each way instead of everything else; not for [`Over::Parallel`].
    pub long: Option<u64>,
}

impl Request {
    /// Runs the checks in a fresh pair of processes. `begin` hears what rank 0 is about to do.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. A wrong byte is no error here: it is counted.
    pub fn run(&self, over: Over, runner: &Runner, begin: &mut dyn FnMut(&str)) -> Result<Session> {
        let sizes = STREAMED.to_vec();
        let task = match (over, self.long) {
            (Over::Parallel, Some(_)) => return Err(Error::Usage("a long stream has one connection each way".into())),
            (Over::Parallel, None) => Task::Parallel { sizes },
            (_, Some(messages)) => Task::Long { bytes: LONG, messages },
            (_, None) => Task::Verify { sizes },
        };
        let job = Job {
            source: self.source.clone(),
            verbs: self.verbs.clone(),
            devices: self.devices,
            fused: over == Over::Fused,
            slice_ms: 0,
            tasks: vec![task],
        };
        runner.run(&job, begin)
    }
}

/// The checks of both ranks, one per kind and size, in the order they ran.
pub fn merged(checks: &[Check]) -> Vec<Check> {
    let mut merged: Vec<Check> = Vec::new();
    for check in checks {
        let same = |other: &&mut Check| other.kind == check.kind && other.bytes == check.bytes;
        match merged.iter_mut().find(same) {
            None => merged.push(check.clone()),
            Some(other) => {
                other.messages += check.messages;
                other.wrong += check.wrong;
                other.fault = other.fault.take().or_else(|| check.fault.clone());
            }
        }
    }
    merged
}
