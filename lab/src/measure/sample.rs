//! One measured value, and what it is a value of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::direction::Direction;
use crate::measure::metric::Metric;

/// One row of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// Named values in the unit of the metric, apart from the counts `iterations` and `connections`.
    pub values: BTreeMap<String, f64>,
}

impl Sample {
    /// A sample from its named values.
    pub fn new(key: Key, values: &[(&str, f64)]) -> Self {
        Self { key, values: values.iter().map(|(name, value)| ((*name).into(), *value)).collect() }
    }

    /// The value that two sides are compared by.
    pub fn headline(&self) -> Option<f64> {
        self.values.get(self.key.metric.info().headline).copied()
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
