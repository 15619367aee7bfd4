//! Medians, and intervals that assume nothing of how values are spread.

use serde::{Deserialize, Serialize};

/// A value in the middle, with the interval that covers the true one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The value.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// The chance that such an interval covers the true value; at least what was asked for if there
    /// are enough values, else that of the whole range.
    pub coverage: f64,
}

/// The median; sorts the values. `None` if there are none.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(f64::midpoint(values[last / 2], values[last.div_ceil(2)]))
}

/// More values than this are joined by pairs first: it changes nothing of note, and takes less time.
const MOST: usize = 256;

/// The estimator of Hodges and Lehmann, the median of the means of all pairs of `values`, with the
/// interval of Wilcoxon's signed ranks. Both only assume that values are distributed symmetrically
/// around the true one. They are 5 % less efficient than the mean if the values are normal, and
/// lose little if there are outliers.
pub fn signed_ranks(values: &[f64], level: f64) -> Option<Estimate> {
    let mut values = values.to_vec();
    while values.len() > MOST {
        values =
            values.chunks(2).map(|pair| pair.iter().sum::<f64>() / pair.len() as f64).collect();
    }
    let count = values.len();
    let mut means = Vec::with_capacity(count * (count + 1) / 2);
    for (at, one) in values.iter().enumerate() {
        means.extend(values[at..].iter().map(|other| f64::midpoint(*one, *other)));
    }
    let median = median(&mut means)?;
    // The chance that the ranks above the true value add up to `below` or less.
    let (mut below, mut tail) = (0, 0.0);
    for (sum, chance) in rank_sums(count).into_iter().enumerate() {
        if sum > 0 && 1.0 - 2.0 * (tail + chance) < level {
            break;
        }
        (below, tail) = (sum, tail + chance);
    }
    Some(Estimate {
        median,
        low: means[below],
        high: means[means.len() - 1 - below],
        coverage: (1.0 - 2.0 * tail).max(0.0),
    })
}

/// The chance of each sum of ranks, from 0 to half of the greatest. Each of `count` ranks counts
/// with a chance of one half.
fn rank_sums(count: usize) -> Vec<f64> {
    let most = count * (count + 1) / 4;
    let mut chances = vec![0.0; most + 1];
    chances[0] = 0.5_f64.powi(count as i32);
    for rank in 1..=count {
        for sum in (rank..=most.min(rank * (rank + 1) / 2)).rev() {
            chances[sum] += chances[sum - rank];
        }
    }
    chances
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
        assert_eq!(median(&mut [9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    /// The table every textbook has: the greatest sum of ranks in a tail of so much on each side.
    #[test]
    fn intervals_are_the_textbooks() {
        for (count, level, sum, coverage) in [
            (6, 0.95, 0, 0.96875),
            (8, 0.95, 3, 0.9609),
            (10, 0.95, 8, 0.9512),
            (10, 0.99, 3, 0.9902),
            (15, 0.95, 25, 0.9521),
            (20, 0.95, 52, 0.9516),
        ] {
            // Means of pairs that are all different.
            let values: Vec<f64> = (0..count).map(|index| 2.0_f64.powi(index)).collect();
            let found = signed_ranks(&values, level).expect("there are values");
            let mut means: Vec<f64> = values
                .iter()
                .enumerate()
                .flat_map(|(at, one)| values[at..].iter().map(move |other| (one + other) / 2.0))
                .collect();
            means.sort_by(f64::total_cmp);
            let ends = (means[sum], means[means.len() - 1 - sum]);
            assert_eq!((found.low, found.high), ends, "{count} {level}");
            assert!((found.coverage - coverage).abs() < 5e-4, "{count}: {}", found.coverage);
        }
    }

    #[test]
    fn few_values_give_their_range_and_say_so() {
        let found = signed_ranks(&[1.0, 3.0, 2.0], 0.95).expect("there are values");
        assert_eq!((found.low, found.median, found.high), (1.0, 2.0, 3.0));
        assert_eq!(found.coverage, 0.75);
        let one = signed_ranks(&[1.5], 0.95).expect("there is a value");
        assert_eq!((one.low, one.high, one.coverage), (1.5, 1.5, 0.0));
        assert_eq!(signed_ranks(&[], 0.95), None);
    }

    #[test]
    fn very_many_values_are_joined() {
        let values: Vec<f64> = (0..2000).map(f64::from).collect();
        let found = signed_ranks(&values, 0.95).expect("there are values");
        assert!((found.median - 999.5).abs() < 1.0 && found.low > 900.0 && found.high < 1100.0);
    }
}
