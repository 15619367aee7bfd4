//! The machine on which a run took place.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

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
        let model = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned()));
        let relevant = |name: &str| {
            ["NCCL_", "FERRITE_", "SOFTRNIC_", "RDMAV_", "IBV_", "MLX5_", "LD_LIBRARY_PATH", "LD_PRELOAD"]
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
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
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
