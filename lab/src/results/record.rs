//! What a run leaves behind: `raw.json`. `docs/raw-json.md` describes it for readers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cost::CaseReport;
use crate::error::{Error, Result};
use crate::measure::plan::Scope;
use crate::measure::verify::Check;
use crate::nccl::library::{Identity, Source};
use crate::nccl::release;
use crate::results::rows::{Blocks, Group, Row, Set};
use crate::transport::instance::Properties;
use crate::verbs::Verbs;

/// The name and version of the format.
pub const SCHEMA: &str = "ferrite-run/3";

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of this tool, with the commit it was built from if that is known.
    pub tool: String,
    /// False if the run was interrupted, or ended early.
    pub complete: bool,
    /// Why it ended early, unless it was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The command line.
    pub command: Vec<String>,
    /// When it started; seconds since 1970.
    pub started_unix: u64,
    /// How long it took; s.
    pub seconds: f64,
    /// Where it ran.
    pub machine: Machine,
    /// Where rank 1 ran, if that is another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_machine: Option<Machine>,
    /// The libibverbs.
    pub verbs: Verbs,
    /// The variables that all processes got beside those of `machine`.
    pub settings: BTreeMap<String, String>,
    /// How thorough it was.
    pub scope: Scope,
    /// A, and B unless only one side was measured.
    pub sides: Vec<Side>,
    /// Every set of connections, in the order of measurement.
    pub sets: Vec<Set>,
    /// One per key.
    pub rows: Vec<Row>,
    /// Rows that are judged together; none with one side.
    pub groups: Vec<Group>,
    /// What messages cost, on the software device.
    #[serde(default)]
    pub costs: Vec<CaseReport>,
}

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
    /// How many blocks of messages were measured, and how many of them were disturbed.
    #[serde(default)]
    pub blocks: Blocks,
}

impl Side {
    /// Puts together what the pairs of one side reported.
    ///
    /// # Errors
    /// [`Error::Io`] if the library cannot be read.
    pub fn new(
        label: &str,
        source: &Source,
        loaded: &[LoadedTransport; 2],
        checks: Vec<Check>,
    ) -> Result<Self> {
        let [zero, one] = loaded;
        let device = |loaded: &LoadedTransport| loaded.devices[loaded.device].clone();
        Ok(Self {
            label: label.into(),
            source: source.clone(),
            variables: BTreeMap::new(),
            identity: zero.identity.clone(),
            version: zero.version.clone(),
            sha256: sha256(&zero.identity.file)?,
            verbs: zero.verbs.clone(),
            devices: [device(zero), device(one)],
            cpus: [zero.cpu, one.cpu],
            load_ms: zero.load_ms,
            init_ms: zero.init_ms,
            checks,
            blocks: Blocks::default(),
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

    /// Without sums: `NCCL 2.21.5 built in`, `Ferrite 0.1.0`.
    pub fn short_title(&self) -> String {
        let Identity { name, nccl_version, .. } = &self.identity;
        if let (Source::Stock { .. }, Some(version)) = (&self.source, nccl_version) {
            return format!("NCCL {} built in", release::version_text(*version));
        }
        let version = self.version.as_deref().unwrap_or_default();
        let version = version.split('+').next().unwrap_or_default();
        format!("{name} {version}").trim_end().to_owned()
    }
}

/// Where a run took place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name; empty in records that did not have it.
    #[serde(default)]
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub processor: String,
    /// CPUs the tool may use.
    pub cpus: usize,
    /// CPUs' worth of other work when the run began.
    pub busy_cpus: Option<f64>,
    /// The variables that transports, libibverbs and the loader read, as the tool found them.
    pub environment: BTreeMap<String, String>,
}

impl Machine {
    /// What this host calls itself.
    pub(crate) fn host_name() -> String {
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().into()
    }

    /// Asks the system.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let model = read("/proc/cpuinfo").lines().find_map(|line| {
            line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned())
        });
        let relevant = |name: &str| {
            [
                "NCCL_", "FERRITE_", "SOFTRNIC_", "RDMAV_", "IBV_", "MLX5_", "LD_LIBRARY_PATH",
                "LD_PRELOAD",
            ]
            .iter()
            .any(|start| name.starts_with(start))
        };
        Self {
            host: Self::host_name(),
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            processor: model.unwrap_or_else(|| "unknown".into()),
            cpus: crate::system::host::cpus().map_or(0, |cpus| cpus.len()),
            busy_cpus: crate::system::host::busy_cpus(std::time::Duration::from_millis(300)),
            environment: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .filter(|(name, _)| relevant(name))
                .collect(),
        }
    }
}

/// Names that have not the same value in both, with both values.
pub(crate) fn differing<'e>(
    one: &'e BTreeMap<String, String>,
    other: &'e BTreeMap<String, String>,
) -> Vec<(&'e String, Option<&'e String>, Option<&'e String>)> {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let both = names.into_iter().map(|name| (name, one.get(name), other.get(name)));
    both.filter(|(_, one, other)| one != other).collect()
}

/// What a worker found when it had loaded the transport: the evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadedTransport {
    /// The library and its vtable.
    pub identity: Identity,
    /// The version that the transport put into its log, next to its name.
    pub version: Option<String>,
    /// The libibverbs that was mapped after `init`.
    pub verbs: Vec<PathBuf>,
    /// All devices.
    pub devices: Vec<Properties>,
    /// The index of the one that was used.
    pub device: usize,
    /// The CPU this process keeps to.
    pub cpu: Option<usize>,
    /// How long loading took; ms.
    pub load_ms: f64,
    /// How long `init` took; ms.
    pub init_ms: f64,
}

/// SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// [`Error::Io`].
pub fn sha256(path: &Path) -> Result<String> {
    let failed = |source| Error::io(format!("cannot read {}", path.display()), source);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher).map_err(failed)?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
