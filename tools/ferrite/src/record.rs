//! What a run leaves behind: `raw.json`. `docs/raw-json.md` describes it for readers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::library::{Identity, Source};
use crate::measure::verify::Check;
use crate::plan::Scope;
use crate::sample::{Better, Key, Sample};
use crate::stats::{self, Estimate};
use crate::traffic::Traffic;
use crate::transport::Properties;
use crate::verbs::Verbs;
use crate::wheel;
use crate::worker::Opened;

/// The name and version of the format.
pub const SCHEMA: &str = "ferrite-run/1";

/// The coverage below which an interval supports no finding: it takes five repetitions.
const CLAIM: f64 = 0.9;

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of this tool.
    pub tool: String,
    /// The command line.
    pub command: Vec<String>,
    /// When it started; seconds since 1970.
    pub started_unix: u64,
    /// How long it took; s.
    pub seconds: f64,
    /// Where it ran.
    pub machine: Machine,
    /// The libibverbs.
    pub verbs: Verbs,
    /// The variables that all processes got beside those of `machine`.
    pub settings: BTreeMap<String, String>,
    /// How thorough it was.
    pub scope: Scope,
    /// A, and B unless only one side was measured.
    pub sides: Vec<Side>,
    /// Every pair of processes that measured, in the order they ran.
    pub sessions: Vec<Run>,
    /// One per key.
    pub rows: Vec<Row>,
}

/// Where a run took place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
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

/// One of the two things compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// `A` or `B`.
    pub label: String,
    /// What was asked for.
    pub source: Source,
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

/// One pair of processes that measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// `A`, `B`, or `A2` for the second A of a repetition.
    pub side: String,
    /// From 0.
    pub repetition: usize,
    /// How long it ran; s.
    pub seconds: f64,
    /// The measurements.
    pub samples: Vec<Sample>,
    /// What the kernel's counters of the devices said, where there are any.
    pub traffic: Vec<Traffic>,
}

/// What a row shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// B is better than A by more than A differs from itself.
    Better,
    /// B is worse than A by more than A differs from itself.
    Worse,
    /// The intervals of B/A and A/A overlap.
    Unclear,
}

/// One key over all repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What.
    #[serde(flatten)]
    pub key: Key,
    /// The unit of the values.
    pub unit: String,
    /// The value that ratios are made of.
    pub headline: String,
    /// Medians of A's values over its first sessions.
    pub a: BTreeMap<String, f64>,
    /// Medians of B's values.
    pub b: Option<BTreeMap<String, f64>>,
    /// B's headline over A's, per repetition.
    pub ratio: Option<Estimate>,
    /// The second A's headline over the first A's, per repetition.
    pub noise: Option<Estimate>,
    /// What follows; null if the repetitions are too few for any claim.
    pub finding: Option<Finding>,
}

impl Side {
    /// Puts together what the pairs of one side reported.
    ///
    /// # Errors
    /// [`Error::Io`] if the library cannot be read.
    pub fn new(label: &str, source: &Source, opened: &[Opened; 2], checks: Vec<Check>) -> Result<Self> {
        let [zero, one] = opened;
        let device = |opened: &Opened| opened.devices[opened.device].clone();
        Ok(Self {
            label: label.into(),
            source: source.clone(),
            identity: zero.identity.clone(),
            version: zero.version.clone(),
            sha256: sha256(&zero.identity.file)?,
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
                format!("{name} (built in, NCCL {})", wheel::version_text(*version))
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

impl Machine {
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
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            processor: model.unwrap_or_else(|| "unknown".into()),
            cpus: crate::host::cpus().map_or(0, |cpus| cpus.len()),
            busy_cpus: crate::host::busy_cpus(std::time::Duration::from_millis(300)),
            environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .filter(|(name, _)| relevant(name))
                .collect(),
        }
    }
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

/// One row per key, in the order of measurement.
pub fn rows(sessions: &[Run]) -> Vec<Row> {
    let mut keys: Vec<Key> = Vec::new();
    for sample in sessions.iter().flat_map(|run| &run.samples) {
        if !keys.contains(&sample.key) {
            keys.push(sample.key);
        }
    }
    keys.iter().filter_map(|key| row(*key, sessions)).collect()
}

fn row(key: Key, sessions: &[Run]) -> Option<Row> {
    let a = medians(key, sessions, "A")?;
    let b = medians(key, sessions, "B");
    let ratio = ratio_of(key, sessions, "B");
    let noise = ratio_of(key, sessions, "A2");
    Some(Row {
        key,
        unit: key.metric.unit().into(),
        headline: key.metric.headline().into(),
        a,
        b,
        ratio,
        noise,
        finding: ratio
            .zip(noise)
            .filter(|(ratio, noise)| ratio.coverage.min(noise.coverage) >= CLAIM)
            .map(|(ratio, noise)| finding(key.metric.better(), ratio, noise)),
    })
}

/// The headline of `side` over that of A, per repetition.
fn ratio_of(key: Key, sessions: &[Run], side: &str) -> Option<Estimate> {
    let headline = |side: &str, repetition| {
        let run = sessions.iter().find(|run| run.side == side && run.repetition == repetition)?;
        run.samples.iter().find(|sample| sample.key == key)?.headline()
    };
    let last = sessions.iter().map(|run| run.repetition).max()?;
    let ratios: Vec<f64> = (0..=last)
        .filter_map(|repetition| Some(headline(side, repetition)? / headline("A", repetition)?))
        .filter(|ratio| ratio.is_finite())
        .collect();
    stats::estimate(&ratios)
}

fn medians(key: Key, sessions: &[Run], side: &str) -> Option<BTreeMap<String, f64>> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in sessions.iter().filter(|run| run.side == side) {
        for sample in run.samples.iter().filter(|sample| sample.key == key) {
            for (name, value) in &sample.values {
                values.entry(name.clone()).or_default().push(*value);
            }
        }
    }
    let medians: BTreeMap<String, f64> =
        values.into_iter().filter_map(|(name, mut values)| Some((name, stats::median(&mut values)?))).collect();
    (!medians.is_empty()).then_some(medians)
}

fn finding(better: Better, ratio: Estimate, noise: Estimate) -> Finding {
    let (above, below) = match better {
        Better::Higher => (Finding::Better, Finding::Worse),
        Better::Lower => (Finding::Worse, Finding::Better),
    };
    if ratio.low > noise.high.max(1.0) {
        above
    } else if ratio.high < noise.low.min(1.0) {
        below
    } else {
        Finding::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Direction, Metric};

    fn estimate(low: f64, high: f64) -> Estimate {
        Estimate { median: f64::midpoint(low, high), low, high, coverage: 0.97 }
    }

    #[test]
    fn a_finding_needs_more_than_the_noise() {
        let noise = estimate(0.97, 1.04);
        for (ratio, higher, lower) in [
            (estimate(1.05, 1.2), Finding::Better, Finding::Worse),
            (estimate(0.8, 0.96), Finding::Worse, Finding::Better),
            (estimate(1.03, 1.2), Finding::Unclear, Finding::Unclear),
            (estimate(0.9, 0.98), Finding::Unclear, Finding::Unclear),
        ] {
            assert_eq!(finding(Better::Higher, ratio, noise), higher);
            assert_eq!(finding(Better::Lower, ratio, noise), lower);
        }
        // A noise that leans to one side does not make a difference of the other.
        assert_eq!(finding(Better::Higher, estimate(0.95, 1.01), estimate(1.02, 1.1)), Finding::Unclear);
    }

    #[test]
    fn rows_pair_the_repetitions() {
        let key = Key { metric: Metric::Bandwidth, bytes: 8, direction: Direction::Forward, depth: 8 };
        let run = |side: &str, repetition, value| Run {
            side: side.into(),
            repetition,
            seconds: 1.0,
            samples: vec![Sample::new(key, &[("typ", value)])],
            traffic: Vec::new(),
        };
        let mut sessions = vec![
            run("A", 0, 1.0),
            run("B", 0, 2.0),
            run("A2", 0, 1.1),
            run("A2", 1, 9.0),
            run("B", 1, 30.0),
            run("A", 1, 10.0),
        ];
        let few = rows(&sessions);
        assert_eq!(few.len(), 1);
        let ratio = few[0].ratio.expect("B ran");
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 2.5, 3.0));
        let noise = few[0].noise.expect("A ran twice");
        assert_eq!((noise.low, noise.high), (0.9, 1.1));
        assert_eq!(few[0].a["typ"], 5.5);
        assert_eq!(few[0].finding, None, "two repetitions show nothing");
        for repetition in 2..6 {
            sessions.extend([("A", 10.0), ("B", 20.0), ("A2", 10.5)].map(|(side, value)| run(side, repetition, value)));
        }
        assert_eq!(rows(&sessions)[0].finding, Some(Finding::Better));
    }
}
