//! What connections have done between two moments.

use super::end::{Buckets, End, quantile};
use super::processes::Processes;
use nccl_net::inspect::stats::layout::record;

/// One end of a connection and what it has done.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Process id.
    pub(crate) pid: u64,
    /// This end's rank.
    pub(crate) rank: Option<u64>,
    /// The end as it is now.
    pub(crate) end: End,
    /// Seconds between the two moments; 0: there is no earlier one.
    pub(crate) seconds: f64,
    /// What the counters have grown by.
    pub(crate) grown: [u64; record::COUNTERS],
    /// Bytes of each rail meanwhile.
    pub(crate) rail_bytes: Vec<u64>,
    /// Bytes of each lane meanwhile.
    pub(crate) lane_bytes: Vec<u64>,
    /// Times of each stage meanwhile.
    pub(crate) stages: [Buckets; record::STAGES],
}

impl Row {
    /// Bytes a second.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.per_second(record::BYTES)
    }

    /// Growth of a counter in a second.
    pub(crate) fn per_second(&self, counter: usize) -> f64 {
        if self.seconds > 0.0 { self.grown[counter] as f64 / self.seconds } else { 0.0 }
    }

    /// A quantile of a stage, in nanoseconds; of all time, if there are too few samples of this interval.
    pub(crate) fn quantile(&self, stage: usize, share: f64) -> Option<f64> {
        quantile(&self.stages[stage], share).or_else(|| quantile(&self.end.stages[stage], share))
    }

    /// The 99th percentile of the stage that the path is in: `wire` or `data`.
    pub(crate) fn path_p99(&self) -> Option<f64> {
        self.quantile(if self.end.is_sender { record::WIRE } else { record::DATA }, 0.99)
    }

    /// The greatest share of the bytes that a rail has carried, with the rail's number, if there are several rails.
    pub(crate) fn greatest_share(&self) -> Option<(usize, f64)> {
        let total = self.rail_bytes.iter().copied().fold(0, u64::saturating_add);
        let most = self.rail_bytes.iter().enumerate().max_by_key(|(_, bytes)| **bytes)?;
        (self.rail_bytes.len() > 1 && total > 0).then(|| (most.0, *most.1 as f64 / total as f64))
    }
}

/// A row for each open end of `now`, compared with `before`.
pub(crate) fn rows(before: Option<&Processes>, now: &Processes) -> Vec<Row> {
    let seconds = before.map_or(0.0, |before| now.at.saturating_duration_since(before.at).as_secs_f64());
    let mut rows = Vec::new();
    for (path, process) in &now.living {
        for end in process.ends.iter().filter(|end| end.is_open) {
            let earlier = before.and_then(|before| before.end(path, end.number, end.generation));
            let own_rank = process.file.rank().or(end.own_rank);
            rows.push(row(process.file.pid(), own_rank, end, earlier, seconds));
        }
    }
    rows
}

fn row(pid: u64, rank: Option<u64>, end: &End, earlier: Option<&End>, seconds: f64) -> Row {
    let grown =
        std::array::from_fn(|at| end.counters[at].saturating_sub(earlier.map_or(0, |earlier| earlier.counters[at])));
    let before = |rail: usize| earlier.and_then(|earlier| earlier.rails.get(rail)).map_or(0, |(_, bytes)| *bytes);
    let rail_bytes = end.rails.iter().enumerate().map(|(rail, (_, bytes))| bytes.saturating_sub(before(rail)));
    let lane_before = |lane: usize| earlier.and_then(|earlier| earlier.lanes.get(lane)).copied().unwrap_or(0);
    let lane_bytes = end.lanes.iter().enumerate().map(|(lane, bytes)| bytes.saturating_sub(lane_before(lane)));
    let lane_bytes = lane_bytes.collect();
    let stages = std::array::from_fn(|stage| {
        let now = &end.stages[stage];
        match earlier {
            Some(earlier) => std::array::from_fn(|at| now[at].saturating_sub(earlier.stages[stage][at])),
            None => *now,
        }
    });
    // Of an end that is new there are no seconds to divide by.
    let seconds = if earlier.is_some() { seconds } else { 0.0 };
    Row { pid, rank, end: end.clone(), seconds, grown, rail_bytes: rail_bytes.collect(), lane_bytes, stages }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::stats_file::tests::{example, parsed};
    use nccl_net::inspect::stats::histogram::{WORDS, bucket_of};
    use nccl_net::inspect::stats::layout::{HEADER_WORDS, RECORD_WORDS};

    /// The first end of the example with some words changed.
    fn end(changes: &[(usize, u64)]) -> End {
        let mut words = example();
        changes.iter().for_each(|(at, value)| words[HEADER_WORDS + at] = *value);
        let file = parsed(&words);
        let (number, record) = file.records().next().expect("one");
        assert_eq!(record.len(), RECORD_WORDS);
        End::new(number, record)
    }

    #[test]
    fn rates_are_differences_and_an_end_without_a_past_has_none() {
        let earlier = end(&[(record::BYTES, 1000), (record::RAIL_COUNT, 2), (record::RAIL_BYTES, 500)]);
        let bucket = record::HISTOGRAMS + record::WIRE * WORDS + bucket_of(5000) / 2;
        let now = end(&[
            (record::BYTES, 5000),
            (record::RAIL_COUNT, 2),
            (record::RAIL_BYTES, 1500),
            (record::RAIL_BYTES + 1, 3000),
            (bucket, 200 << (32 * (bucket_of(5000) % 2))),
        ]);
        let row_of = |earlier| row(1, None, &now, earlier, 2.0);
        let known = row_of(Some(&earlier));
        assert!((known.bytes_per_second() - 2000.0).abs() < 1e-9 && known.rail_bytes == [1000, 3000]);
        assert_eq!(known.greatest_share(), Some((1, 0.75)));
        assert!(known.path_p99().is_some_and(|ns| (4000.0..6000.0).contains(&ns)), "{:?}", known.path_p99());
        assert!(row_of(None).bytes_per_second().abs() < 1e-9);
    }
}
