//! One end of a connection, as its record describes it.

use super::stats_file::text;
use nccl_net::inspect::operation::Call;
use nccl_net::inspect::stats::histogram::{self, BUCKETS, lower_bound};
use nccl_net::inspect::stats::layout::{OPEN, SENDER, record};

/// The names of a sender's stages and of a receiver's.
pub(crate) const STAGES: [[&str; record::STAGES]; 2] = [["gpu", "cts", "wire"], ["announce", "data", "consume"]];

/// Times by bucket.
pub(crate) type Buckets = [u32; BUCKETS];

/// The end at a moment.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// Number of its record.
    pub(crate) number: usize,
    /// Changes when the record is given to another end.
    pub(crate) generation: u64,
    /// Whether the connection stands.
    pub(crate) is_open: bool,
    /// Whether it is the sender.
    pub(crate) is_sender: bool,
    /// The device.
    pub(crate) device: String,
    /// Host, process and rank of the peer.
    pub(crate) peer: Peer,
    /// This end's rank, as its messages tell it.
    pub(crate) own_rank: Option<u64>,
    /// The counters: the first words of the record.
    pub(crate) counters: [u64; record::COUNTERS],
    /// Whether a message waits for its clear-to-send.
    pub(crate) is_refused: bool,
    /// For how long something has been outstanding without any progress, in nanoseconds; 0: for less than a second.
    pub(crate) stall: u64,
    /// The longest such time.
    pub(crate) longest_stall: u64,
    /// Since when the connection has been recovering, in nanoseconds since 1970, and the attempts since then.
    pub(crate) recovering: Option<(u64, u64)>,
    /// Names of the rails, and the bytes that a sender has given to each, if there are several.
    pub(crate) rails: Vec<(String, u64)>,
    /// Numbers of the queue pairs.
    pub(crate) queue_pairs: Vec<u32>,
    /// The bytes that a sender has given to each queue pair, if they are lanes.
    pub(crate) lanes: Vec<u64>,
    /// The times of each stage.
    pub(crate) stages: [Buckets; record::STAGES],
    /// The longest time of each stage, in nanoseconds.
    pub(crate) longest: [u64; record::STAGES],
    /// NCCL's number of the communicator that the connection is for; 0: it is not known.
    pub(crate) communicator: u64,
    /// The operation of NCCL that the outstanding messages are of, and the name of its communicator, which may be empty.
    pub(crate) operation: Option<(Call, String)>,
}

/// The other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Host name.
    pub(crate) host: String,
    /// Process id.
    pub(crate) pid: u64,
    /// Its launcher's word, or else what messages tell.
    pub(crate) rank: Option<u64>,
}

impl End {
    /// The end whose record has this number and these words.
    pub(crate) fn new(number: usize, words: &[u64]) -> Self {
        let of = |at: usize| words[at];
        let counters = std::array::from_fn(of);
        let rank = [record::PEER_LABEL, record::PEER_RANK].into_iter().find_map(|at| of(at).checked_sub(1));
        let rails = (0..of(record::RAIL_COUNT).min(record::RAILS as u64) as usize).map(|rail| {
            let name = &words[record::RAIL_NAMES + rail * record::RAIL_NAME_WORDS..][..record::RAIL_NAME_WORDS];
            (text(name), of(record::RAIL_BYTES + rail))
        });
        let numbers =
            words[record::QPS..][..record::QPS_WORDS].iter().flat_map(|word| [*word as u32, (word >> 32) as u32]);
        Self {
            number,
            generation: of(record::STATE) >> 8,
            is_open: of(record::STATE) & 0xff == OPEN,
            is_sender: of(record::DIRECTION) == SENDER,
            device: text(&words[record::DEVICE..][..record::DEVICE_WORDS]),
            peer: Peer {
                host: text(&words[record::PEER_HOST..][..record::PEER_HOST_WORDS]),
                pid: of(record::PEER_PID),
                rank,
            },
            own_rank: of(record::OWN_RANK).checked_sub(1),
            counters,
            is_refused: of(record::REFUSED_AT) == of(record::BEGUN),
            stall: of(record::STALL),
            longest_stall: of(record::LONGEST_STALL),
            recovering: Some((of(record::RECOVERING), of(record::ATTEMPTS))).filter(|(since, _)| *since != 0),
            rails: rails.collect(),
            queue_pairs: numbers.take(of(record::QP_COUNT).min(2 * record::QPS_WORDS as u64) as usize).collect(),
            lanes: lanes(words),
            stages: std::array::from_fn(|stage| buckets(words, stage)),
            longest: std::array::from_fn(|stage| of(record::LONGEST + stage)),
            communicator: of(record::COMMUNICATOR),
            operation: Call::from_bits(of(record::OPERATION))
                .map(|call| (call, text(&words[record::COMMUNICATOR_NAME..][..record::COMMUNICATOR_NAME_WORDS]))),
        }
    }

    /// Messages that are under way.
    pub(crate) fn outstanding(&self) -> u64 {
        self.counters[record::BEGUN].saturating_sub(self.counters[record::DONE])
    }

    /// The names of its stages.
    pub(crate) fn stage_names(&self) -> [&'static str; record::STAGES] {
        STAGES[usize::from(!self.is_sender)]
    }
}

/// The bytes of each lane; none of a file of an older minor layout, or where queue pairs are no lanes.
fn lanes(words: &[u64]) -> Vec<u64> {
    let count = words[record::QP_COUNT].min(record::LANES as u64) as usize;
    let bytes = words.get(record::LANE_BYTES..record::LANE_BYTES + count).unwrap_or_default();
    if bytes.iter().all(|bytes| *bytes == 0) { Vec::new() } else { bytes.to_vec() }
}

fn buckets(words: &[u64], stage: usize) -> Buckets {
    let words = &words[record::HISTOGRAMS + stage * histogram::WORDS..][..histogram::WORDS];
    std::array::from_fn(|bucket| (words[bucket / 2] >> (32 * (bucket % 2))) as u32)
}

/// The time in nanoseconds that a share of `quantile` of the samples does not exceed: the middle of its bucket. `None`: there are too
/// few samples to tell.
pub(crate) fn quantile(buckets: &Buckets, quantile: f64) -> Option<f64> {
    let total: u64 = buckets.iter().map(|count| u64::from(*count)).sum();
    // Of 100 samples, one is above the 99th percentile.
    if (total as f64) * (1.0 - quantile) < 1.0 {
        return None;
    }
    let wanted = (total as f64 * quantile).ceil() as u64;
    let mut seen = 0;
    let bucket = buckets.iter().position(|count| {
        seen += u64::from(*count);
        seen >= wanted
    })?;
    Some((lower_bound(bucket) as f64 * lower_bound(bucket + 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_need_enough_samples_and_are_in_the_middle_of_a_bucket() {
        let mut buckets = [0; BUCKETS];
        assert_eq!(quantile(&buckets, 0.5), None);
        buckets[histogram::bucket_of(1000)] = 98;
        buckets[histogram::bucket_of(1_000_000)] = 1;
        assert_eq!(quantile(&buckets, 0.99), None, "99 samples");
        buckets[histogram::bucket_of(1_000_000)] = 2;
        let near = |found: Option<f64>, ns: f64| found.is_some_and(|found| (found / ns - 1.0).abs() < 0.125);
        assert!(near(quantile(&buckets, 0.5), 1000.0), "{:?}", quantile(&buckets, 0.5));
        assert!(near(quantile(&buckets, 0.99), 1e6), "{:?}", quantile(&buckets, 0.99));
    }
}
