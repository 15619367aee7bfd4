//! Histograms of times, with four buckets per doubling. `ferrite top` uses this file too.
//!
//! A bucket is reported as the geometric mean of its bounds, with an error of at most 12 %.

/// Buckets of a histogram.
pub const BUCKETS: usize = 96;
/// Words of a histogram: two counts per word, the first in the lower 32 bits.
pub const WORDS: usize = BUCKETS / 2;
/// The second bucket begins at 2 to this power, in nanoseconds.
const FIRST_POWER: u32 = 7;

/// The bucket of a time in nanoseconds. The first and the last also hold everything below and
/// above.
pub fn bucket_of(ns: u64) -> usize {
    let Some(power) = ns.max(1).ilog2().checked_sub(FIRST_POWER) else { return 0 };
    let quarter = ns >> (power + FIRST_POWER - 2) & 3;
    (power as usize * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The lower bound of a bucket in nanoseconds. One past the last bucket gives the upper bound of
/// the last.
pub fn lower_bound(bucket: usize) -> u64 {
    (4 + bucket as u64 % 4) << (bucket as u32 / 4 + FIRST_POWER - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_whose_bounds_enclose_it() {
        for bucket in 0..BUCKETS {
            let (low, high) = (lower_bound(bucket), lower_bound(bucket + 1));
            assert_eq!((bucket_of(low), bucket_of(high - 1)), (bucket, bucket));
            assert!(high as f64 / low as f64 <= 1.25 + 1e-9 && high > low, "{low} {high}");
        }
        assert_eq!((bucket_of(0), bucket_of(127), bucket_of(u64::MAX)), (0, 0, BUCKETS - 1));
        assert_eq!((lower_bound(0), lower_bound(BUCKETS)), (128, 1 << 31));
    }
}
