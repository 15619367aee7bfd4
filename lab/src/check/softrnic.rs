//! What happens to the software device: its command line, used from within a point.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// The software device of this process's fabric.
#[derive(Debug, Clone)]
pub(super) struct Softrnic {
    program: PathBuf,
}

/// Objects on all devices of a fabric, of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Objects {
    pub(super) queue_pairs: u64,
    pub(super) completion_queues: u64,
    pub(super) memory_regions: u64,
}

impl std::fmt::Display for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { queue_pairs, completion_queues, memory_regions } = self;
        write!(f, "{queue_pairs} queue pairs, {completion_queues} completion queues, {memory_regions} memory regions")
    }
}

impl Softrnic {
    pub(super) fn new(program: &Path) -> Self {
        Self { program: program.into() }
    }

    /// Runs `softrnic WORDS` on the fabric that this process takes part in; what it prints.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be started; [`Error::Refused`] with its words if it fails.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(words)
            .output()
            .map_err(|source| Error::io(format!("cannot start {}", self.program.display()), source))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Refused(format!("the software device: {words}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Everything that there is.
    ///
    /// # Errors
    /// As [`Self::run`]; [`Error::Unreadable`] if it is not understood.
    pub(super) fn stat(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.run(&["stat", "--json"])?)
            .map_err(|problem| Error::Unreadable(format!("softrnic stat: {problem}")))
    }

    /// How many objects there are.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub(super) fn objects(&self) -> Result<Objects> {
        let stat = self.stat()?;
        let devices = stat["devices"].as_array().cloned().unwrap_or_default();
        let listed = |name: &str| devices.iter().map(|device| device[name].as_array().map_or(0, Vec::len) as u64).sum();
        Ok(Objects {
            queue_pairs: listed("queue_pairs"),
            completion_queues: listed("completion_queues"),
            memory_regions: devices.iter().map(|device| device["memory_regions"].as_u64().unwrap_or(0)).sum(),
        })
    }

    /// What each queue pair has sent, in messages.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub(super) fn messages(&self) -> Result<Vec<u64>> {
        let stat = self.stat()?;
        let devices = stat["devices"].as_array().cloned().unwrap_or_default();
        let pairs = devices.iter().flat_map(|device| device["queue_pairs"].as_array().cloned().unwrap_or_default());
        Ok(pairs.map(|pair| pair["counters"]["messages"].as_u64().unwrap_or(0)).collect())
    }

    /// Puts a fault rule into force.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) fn inject(&self, rule: &str) -> Result<()> {
        self.run(&["inject", rule]).map(drop)
    }
}
