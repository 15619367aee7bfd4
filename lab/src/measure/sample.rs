//! One measured value, and what it is a value of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::metric::Metric;
use crate::measure::plan::Direction;

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
    /// Named values in the unit of the metric, apart from the counts `iterations` and
    /// `connections`.
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

/// A median with the interval that covers it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// The chance that such an interval covers the true median; at least what was asked for if
    /// there are enough values (six for [`LEVEL`]), else that of the whole range.
    pub coverage: f64,
}

impl Estimate {
    /// Whether the value lies inside the interval.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// The quotient, whose interval misses if either of the two misses. `None` for values that have
    /// none.
    pub fn over(&self, other: &Self) -> Option<Self> {
        let [median, low, high] =
            [self.median / other.median, self.low / other.high, self.high / other.low]
                .map(|v| Some(v).filter(|v| v.is_normal()));
        Some(Self {
            median: median?,
            low: low?,
            high: high?,
            coverage: self.coverage + other.coverage - 1.0,
        })
    }

    /// The interval that holds both.
    pub fn joined(&self, other: &Self) -> Self {
        Self {
            median: (self.median * other.median).sqrt(),
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            coverage: self.coverage.min(other.coverage),
        }
    }
}

/// The coverage aimed at.
pub const LEVEL: f64 = 0.95;

/// The median; sorts the values. `None` if there are none.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    quantile_of_sorted(values, 0.5)
}

/// The value below which `fraction` of the sorted values lie, interpolated. `None` if there are
/// none.
pub fn quantile_of_sorted(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = fraction.clamp(0.0, 1.0) * last as f64;
    let below = at.floor();
    let (low, high) = (sorted[below as usize], sorted[(below as usize + 1).min(last)]);
    Some(low + (high - low) * (at - below))
}

/// The median of `values` and the narrowest pair of order statistics (the k-th smallest and the
/// k-th largest) that covers the true median with a chance of at least [`LEVEL`]: each value falls
/// below the true median with a chance of one half, whatever the distribution, so the chance is a
/// binomial sum.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    estimate_at(values, LEVEL)
}

/// As [`estimate`], with a chance of at least `level` if there are enough values.
pub fn estimate_at(values: &[f64], level: f64) -> Option<Estimate> {
    let mut sorted = values.to_vec();
    let median = median(&mut sorted)?;
    let count = sorted.len();
    let mut tail = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let (mut below, mut term) = (0, tail);
    // Widen the tails while the coverage stays: P(X <= below) of a binomial with chance 1/2.
    while below + 1 < count / 2 {
        let next = term * (count - below) as f64 / (below + 1) as f64;
        if 1.0 - 2.0 * (tail + next) < level {
            break;
        }
        (below, term) = (below + 1, next);
        tail += next;
    }
    Some(Estimate {
        median,
        low: sorted[below],
        high: sorted[count - 1 - below],
        coverage: 1.0 - 2.0 * tail,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [3.0, 1.0]), Some(2.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile_of_sorted(&sorted, 0.99), Some(99.0));
        assert_eq!(quantile_of_sorted(&sorted, 0.0), Some(0.0));
        assert_eq!(quantile_of_sorted(&sorted, 1.0), Some(100.0));
    }

    /// The table every textbook has: for n values the k-th smallest and largest, and the coverage.
    #[test]
    fn intervals_are_the_textbooks() {
        for (count, k, coverage) in [
            (5, 1, 0.9375),
            (6, 1, 0.96875),
            (8, 1, 0.9921875),
            (9, 2, 0.9609375),
            (12, 3, 0.961425),
            (15, 4, 0.964844),
            (20, 6, 0.958611),
        ] {
            let values: Vec<f64> = (1..=count).map(f64::from).collect();
            let found = estimate(&values).expect("there are values");
            assert_eq!(found.low, f64::from(k), "{count}");
            assert_eq!(found.high, f64::from(count + 1 - k), "{count}");
            assert!((found.coverage - coverage).abs() < 1e-5, "{count}: {}", found.coverage);
        }
    }

    #[test]
    fn few_values_give_their_range_and_say_so() {
        let found = estimate(&[1.0, 3.0, 2.0]).expect("there are values");
        assert_eq!((found.low, found.median, found.high), (1.0, 2.0, 3.0));
        assert_eq!(found.coverage, 0.75);
        let one = estimate(&[1.5]).expect("there is a value");
        assert_eq!((one.low, one.high, one.coverage), (1.5, 1.5, 0.0));
        assert_eq!(estimate(&[]), None);
    }
}
