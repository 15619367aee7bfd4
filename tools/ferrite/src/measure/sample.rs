//! What is measured, and one measured value of it. A new metric is a new [`Metric`], nothing else.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::measure::metric::Metric;

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Rank 0 to rank 1.
    Forward,
    /// Rank 1 to rank 0.
    Backward,
    /// Both at once; a rate is the sum.
    Both,
}

impl Direction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Backward, Self::Both];

    /// Whether `rank` sends.
    pub fn sends(self, rank: usize) -> bool {
        match self {
            Self::Forward => rank == 0,
            Self::Backward => rank == 1,
            Self::Both => true,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "0->1",
            Self::Backward => "1->0",
            Self::Both => "both",
        })
    }
}

/// One row of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// What.
    pub metric: Metric,
    /// Of messages of this size; 0 where there are none.
    pub bytes: u64,
    /// Who sends.
    pub direction: Direction,
    /// Messages in flight, or connections made at once.
    pub depth: u32,
}

/// One key, measured once in one pair of processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// What.
    #[serde(flatten)]
    pub key: Key,
    /// Named values in [`Metric::unit`], apart from the counts `iterations` and `connections`.
    pub values: BTreeMap<String, f64>,
}

impl Sample {
    /// A sample from its named values.
    pub fn new(key: Key, values: &[(&str, f64)]) -> Self {
        Self { key, values: values.iter().map(|(name, value)| ((*name).into(), *value)).collect() }
    }

    /// The value that two sides are compared by.
    pub fn headline(&self) -> Option<f64> {
        self.values.get(self.key.metric.headline()).copied()
    }
}

/// A size as nccl-tests and perftest users write it: `8`, `4K`, `1M`.
pub fn size_text(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        b if b.is_multiple_of(1 << 20) => format!("{}M", b >> 20),
        b if b.is_multiple_of(1 << 10) => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}
