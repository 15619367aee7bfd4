//! One of the two transports of a comparison, as evidence.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::measure::byte_check::Check;
use crate::nccl::library::{Identity, Source};
use crate::nccl::release;
use crate::results::file_hash;
use crate::results::loaded::LoadedTransport;
use crate::transport::instance::Properties;

/// One of the two things compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// `A` or `B`.
    pub label: String,
    /// What was asked for.
    pub source: Source,
    /// Variables that its processes alone got, with their values.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// What was loaded.
    pub identity: Identity,
    /// The version that the transport says it has.
    pub version: Option<String>,
    /// SHA-256 of `identity.file`.
    pub sha256: String,
    /// The libibverbs that its processes had mapped.
    pub verbs: Vec<PathBuf>,
    /// The device of each rank.
    pub devices: [Properties; 2],
    /// The CPU of each rank, if pinned.
    pub cpus: [Option<usize>; 2],
    /// Time to load the library, on rank 0; ms.
    pub load_ms: f64,
    /// Time of `init`, on rank 0; ms.
    pub init_ms: f64,
    /// The verification pass, both ranks.
    pub checks: Vec<Check>,
}

impl Side {
    /// Puts together what the pairs of one side reported.
    ///
    /// # Errors
    /// [`Error::Io`](crate::error::Error::Io) if the library cannot be read.
    pub fn new(label: &str, source: &Source, loaded: &[LoadedTransport; 2], checks: Vec<Check>) -> Result<Self> {
        let [zero, one] = loaded;
        let device = |loaded: &LoadedTransport| loaded.devices[loaded.device].clone();
        Ok(Self {
            label: label.into(),
            source: source.clone(),
            variables: BTreeMap::new(),
            identity: zero.identity.clone(),
            version: zero.version.clone(),
            sha256: file_hash::sha256(&zero.identity.file)?,
            verbs: zero.verbs.clone(),
            devices: [device(zero), device(one)],
            cpus: [zero.cpu, one.cpu],
            load_ms: zero.load_ms,
            init_ms: zero.init_ms,
            checks,
        })
    }

    /// `IB (built in, NCCL 2.21.5)` or `Ferrite 0.1.0 (sha256 3f1c…)`.
    pub fn title(&self) -> String {
        let Identity { name, nccl_version, .. } = &self.identity;
        match (&self.source, nccl_version) {
            (Source::Stock { .. }, Some(version)) => {
                format!("{name} (built in, NCCL {})", release::version_text(*version))
            }
            _ => {
                let version = self.version.as_deref().map(|v| format!(" {v}"));
                let loader = match self.source {
                    Source::Loader { .. } => ", through NCCL's loader",
                    _ => "",
                };
                format!(
                    "{name}{} (sha256 {}…{loader})",
                    version.unwrap_or_default(),
                    &self.sha256[..12.min(self.sha256.len())]
                )
            }
        }
    }

    /// Messages checked.
    pub fn checked(&self) -> u64 {
        self.checks.iter().map(|check| check.messages).sum()
    }

    /// Messages of this size that were wrong.
    pub fn wrong(&self, bytes: u64) -> u64 {
        let of_size = |check: &&Check| check.bytes == bytes && check.kind != "group";
        self.checks.iter().filter(of_size).map(|check| check.wrong).sum()
    }
}
