//! What a pair of workers is told to do.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::measure::metric::Metric;
use crate::nccl::library::Source;
use crate::transport::buffer::Buffer;
use crate::verbs::Verbs;

pub use payload::{Difference, word};

/// Messages in flight in a stream, the number of steps NCCL keeps in flight on a connection.
pub const DEPTH: u32 = 8;
/// The largest message.
pub const LARGEST: usize = 4 << 20;

/// Message sizes of the verification pass: the edges of cache lines, pages, words, and odd ones.
pub const ODD_SIZES: [usize; 20] = [
    0,
    1,
    7,
    8,
    63,
    64,
    65,
    127,
    128,
    129,
    4095,
    4096,
    4097,
    65535,
    65536,
    65537,
    1_000_003,
    1 << 20,
    (1 << 20) + 1,
    LARGEST,
];

/// One thing to measure or to verify.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task {
    /// Connect, `at_once` at a time, and keep all open until the last is ready.
    Setup {
        /// How many in all.
        connections: u32,
        /// How many are pending at a time.
        at_once: u32,
    },
    /// Make so many connections at once and close them, so many times: later queue pairs have other
    /// numbers.
    Renumber {
        /// How many at once.
        connections: u32,
        /// How many times.
        times: u32,
    },
    /// Ping-pong.
    Latency {
        /// The message size.
        bytes: usize,
    },
    /// Stream with [`DEPTH`] in flight.
    Stream {
        /// One that has a [`rate`](crate::measure::metric::MetricInfo::rate).
        metric: Metric,
        /// The message size.
        bytes: usize,
        /// Who sends.
        direction: Direction,
    },
    /// Check every byte: single messages, streams, groups, truncation.
    Verify {
        /// The sizes that will be, or were, measured.
        sizes: Vec<usize>,
    },
    /// Check every byte of streams over two connections at once, which lie on the first two
    /// devices.
    Parallel {
        /// The sizes of the messages.
        sizes: Vec<usize>,
    },
    /// Check every byte of a long stream both ways: time for something to go wrong in.
    Long {
        /// The message size.
        bytes: usize,
        /// How many each way.
        messages: u64,
    },
}

impl Task {
    /// In words, for the progress line and for the report of a hang.
    pub fn words(&self) -> String {
        match self {
            Self::Setup { connections, at_once } => {
                format!("connecting {connections} times, {at_once} at once")
            }
            Self::Renumber { .. } => "making and closing connections".into(),
            Self::Latency { bytes } => format!("{} of {bytes} B", Metric::Latency.info().name),
            Self::Stream { metric, bytes, direction } => {
                format!("{} of {bytes} B {direction}", metric.info().name)
            }
            Self::Verify { .. } => "verifying every byte".into(),
            Self::Parallel { .. } => "verifying two connections at once".into(),
            Self::Long { bytes, messages } => {
                format!("verifying a stream of {messages} messages of {bytes} B")
            }
        }
    }
}

/// The order to both workers of a pair.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// What to load.
    pub source: Source,
    /// What rank 1 loads instead: another build of the same transport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Source>,
    /// Which libibverbs it has to be using.
    pub verbs: Verbs,
    /// Device index of each rank; `None`: 0, and for rank 1 the second device if there is one.
    pub devices: [Option<usize>; 2],
    /// Whether two devices are made into one, and that is used instead.
    pub fused: bool,
    /// How long each measurement lasts, roughly; ms.
    pub slice_ms: u64,
    /// Variables of both processes, with their values.
    pub variables: Vec<(String, String)>,
    /// Connections each way that a stream is over at once.
    pub streams: u32,
    /// In this order.
    pub tasks: Vec<Task>,
}

impl Job {
    /// What the process of `rank` loads.
    pub fn source_of(&self, rank: usize) -> &Source {
        self.peer.as_ref().filter(|_| rank == 1).unwrap_or(&self.source)
    }
}

/// How thorough a run is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// Triples of A, B and A again.
    pub repetitions: usize,
    /// How long each measurement lasts, roughly; ms.
    pub slice_ms: u64,
    /// Connections of the many-at-once set-up.
    pub connections: u32,
    /// Connections of the one-by-one set-up.
    pub singles: u32,
    /// Message sizes of the latency test.
    pub latency_sizes: Vec<usize>,
    /// Message sizes of the bandwidth test.
    pub bandwidth_sizes: Vec<usize>,
    /// The run tells too little if a difference of so much could not have been found in every
    /// group; %.
    pub find_percent: u32,
    /// B fails where it is found to be worse by so much or more; %. 0: wherever it is found to be
    /// worse.
    #[serde(default)]
    pub fail_percent: u32,
    /// Connections each way that a stream is over at once. With more than one, streams both ways
    /// are all that is measured.
    #[serde(default = "one")]
    pub streams: u32,
}

/// What records had that do not say how many.
fn one() -> u32 {
    1
}

/// Connections that are pending at a time, at most: NCCL connects 128 peers a round.
const PENDING: u32 = 128;

impl Scope {
    /// About three minutes for a comparison. Many short sessions, since one differs from the next
    /// by more than its parts do; and a multiple of six, see `crate::run::compare`.
    pub fn standard() -> Self {
        Self {
            repetitions: 24,
            slice_ms: 40,
            connections: 100,
            singles: 20,
            latency_sizes: vec![8, 64, 512, 1024, 4096],
            bandwidth_sizes: vec![
                8,
                64,
                512,
                4096,
                16 << 10,
                64 << 10,
                256 << 10,
                1 << 20,
                LARGEST,
            ],
            find_percent: 10,
            fail_percent: 0,
            streams: 1,
        }
    }

    /// Less than a minute for a comparison: for continuous integration.
    pub fn quick() -> Self {
        Self {
            repetitions: 12,
            slice_ms: 20,
            connections: 50,
            singles: 5,
            latency_sizes: vec![8, 4096],
            bandwidth_sizes: vec![8, 4096, 64 << 10, 1 << 20, LARGEST],
            find_percent: 10,
            fail_percent: 0,
            streams: 1,
        }
    }

    /// The difference that must not be missed, as a fraction.
    pub fn find(&self) -> f64 {
        f64::from(self.find_percent) / 100.0
    }

    /// What is no failure yet, as a fraction.
    pub fn fail(&self) -> f64 {
        f64::from(self.fail_percent) / 100.0
    }

    /// What a measuring pair does in this repetition. As queue pair numbers choose paths, streams
    /// over several connections have others in each.
    pub fn measuring(&self, repetition: usize) -> Vec<Task> {
        let stream = |metric, bytes, direction| Task::Stream { metric, bytes, direction };
        if self.streams > 1 {
            let both = |bytes: &usize| stream(Metric::Bandwidth, *bytes, Direction::Both);
            let other_numbers =
                Task::Renumber { connections: 2 * self.streams, times: repetition as u32 };
            return std::iter::once(other_numbers)
                .chain(self.bandwidth_sizes.iter().map(both))
                .collect();
        }
        let mut tasks = vec![
            Task::Setup { connections: self.singles, at_once: 1 },
            Task::Setup { connections: self.connections, at_once: self.connections.min(PENDING) },
        ];
        tasks.extend(self.latency_sizes.iter().map(|&bytes| Task::Latency { bytes }));
        tasks.extend(Direction::ALL.map(|way| stream(Metric::MessageRate, 8, way)));
        for &bytes in &self.bandwidth_sizes {
            tasks.extend(Direction::ALL.map(|way| stream(Metric::Bandwidth, bytes, way)));
        }
        tasks
    }

    /// What a verifying pair does.
    pub fn verifying(&self) -> Vec<Task> {
        let mut sizes = if self.streams > 1 { Vec::new() } else { self.latency_sizes.clone() };
        sizes.extend(&self.bandwidth_sizes);
        sizes.sort_unstable();
        sizes.dedup();
        vec![Task::Verify { sizes }]
    }
}

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// The seed of message `index` that `rank` sends in the test `test`.
pub fn seed(test: u64, rank: usize, index: u64) -> u64 {
    word(test.wrapping_mul(2).wrapping_add(rank as u64), index)
}

/// Writes the message.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if it does not fit.
pub fn fill(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<()> {
    // SAFETY: the caller fills what it is about to send; no receive is posted there.
    unsafe { memory.with(offset, len, |bytes| payload::fill(bytes, seed)) }
}

/// Compares `len` bytes with the message.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub fn check(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<Option<Difference>> {
    // SAFETY: the caller looks at a receive that is done.
    unsafe { memory.with(offset, len, |bytes| payload::difference(bytes, seed)) }
}

/// How many of `len` bytes are not the message's.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub fn wrong_bytes(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<u64> {
    // SAFETY: the caller looks at a receive that is done, or at memory that no receive is posted
    // for.
    unsafe { memory.with(offset, len, |bytes| payload::differences(bytes, seed) as u64) }
}

/// Looks for a byte that is not `value`.
///
/// # Errors
/// [`crate::error::Error::Misuse`] if the range lies outside.
pub fn untouched(
    memory: &Buffer,
    offset: usize,
    len: usize,
    value: u8,
) -> Result<Option<Difference>> {
    // SAFETY: the caller looks beside a receive that is done.
    unsafe { memory.with(offset, len, |bytes| payload::other_than(bytes, value)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_different_tests_ranks_and_numbers_differ() {
        let (mut one, mut two) = ([0; 4096], [0; 4096]);
        payload::fill(&mut one, seed(1, 0, 0));
        for (other, rank, index) in [(1, 0, 1), (1, 1, 0), (2, 0, 0)] {
            payload::fill(&mut two, seed(other, rank, index));
            assert!(one.chunks(8).zip(two.chunks(8)).all(|(a, b)| a != b));
        }
    }
}
