//! The software device of a run, as the process that started it changes and reads it: by its command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::outlast::fault::Fault;

/// The command line of the software device, and the fabric of one run.
#[derive(Debug)]
pub(super) struct Device {
    program: PathBuf,
    fabric: String,
}

/// What ports have counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Bytes that were sent from the sender's ports and acknowledged.
    pub(super) sender_bytes: u64,
    /// Transmissions from any port that got no answer.
    pub(super) losses: u64,
}

impl Device {
    pub(super) fn new(program: &Path, fabric: &str) -> Self {
        Self { program: program.into(), fabric: fabric.into() }
    }

    /// Whether the device understands a rule, before there is a fabric.
    ///
    /// # Errors
    /// [`Error::Usage`] with the device's words if it does not.
    pub(super) fn require_rule(program: &Path, folder: &Path, rule: &str) -> Result<()> {
        let output = Command::new(program)
            .args(["run", "--faults", rule, "--library"])
            .arg(folder)
            .args(["--", "true"])
            .output()
            .map_err(|source| Error::io(format!("cannot start {}", program.display()), source))?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Usage(format!(
            "--fault {rule:?}: {}",
            why.rsplit_once("\": ").map_or(why.as_str(), |(_, words)| words)
        )))
    }

    /// Does what the fault says, if it is one of the device.
    ///
    /// # Errors
    /// [`Error::Usage`] with the device's words if it refuses.
    pub(super) fn apply(&self, fault: &Fault) -> Result<()> {
        match fault {
            Fault::Rule(rule) => self.run(&["inject", rule]).map(drop),
            Fault::Clear => self.run(&["inject", "--clear"]).map(drop),
            Fault::Change(words) => self.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).map(drop),
            Fault::Kill(_) | Fault::Stop(_) | Fault::Continue(_) | Fault::Line(_) => Ok(()),
        }
    }

    /// The counters of all ports; the first `sender_devices` devices are the sender's.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no fabric any more; [`Error::Unreadable`].
    pub(super) fn counted(&self, sender_devices: usize) -> Result<Counted> {
        let text = self.run(&["stat", "--json"])?;
        let stat: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| Error::Unreadable(format!("softrnic stat: {e}")))?;
        let mut counted = Counted::default();
        for (index, device) in stat["devices"].as_array().into_iter().flatten().enumerate() {
            for port in device["ports"].as_array().into_iter().flatten() {
                let counter = |name: &str| port["counters"][name].as_u64().unwrap_or(0);
                counted.losses += counter("losses");
                counted.sender_bytes += if index < sender_devices { counter("bytes") } else { 0 };
            }
        }
        Ok(counted)
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(["--fabric", &self.fabric])
            .args(words)
            .output()
            .map_err(|source| Error::io(format!("cannot start {}", self.program.display()), source))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Usage(format!("softrnic {}: {why}", words.join(" "))));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
