//! The orders to a pair of workers.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::measure::metric::{Direction, Key, Metric};
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
    0, 1, 7, 8, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 65535, 65536, 65537, 1_000_003,
    1_048_576, 1_048_577, 4_194_304,
];

/// One thing to measure or to verify.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Task {
    /// Measure these rows over fresh connections, both sides in turns.
    Turns {
        /// In this order.
        rows: Vec<Key>,
        /// Determines the order of the sides.
        seed: u64,
        /// The number of blocks, as a multiple of the usual one.
        rounds: usize,
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
            Self::Turns { .. } => "connecting both sides".into(),
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
    /// B, where both sides take turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// Which libibverbs it has to be using.
    pub verbs: Verbs,
    /// Device index of each rank; `None`: 0, and for rank 1 the second device if there is one.
    pub devices: [Option<usize>; 2],
    /// Whether two devices are made into one, and that is used instead.
    pub fused: bool,
    /// Variables of `source`, with their values.
    pub variables: Vec<(String, String)>,
    /// Connections in each direction that carry a stream at once.
    pub streams: u32,
    /// In this order.
    pub tasks: Vec<Task>,
}

/// The other side of a comparison.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Beside {
    /// What to load.
    pub source: Source,
    /// Its variables, with their values.
    pub variables: Vec<(String, String)>,
    /// Whether it is loaded before the other one.
    pub is_first: bool,
}

impl Job {
    /// What the process of `rank` loads.
    pub fn source_of(&self, rank: usize) -> &Source {
        self.peer.as_ref().filter(|_| rank == 1).unwrap_or(&self.source)
    }
}

/// What is measured, and how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// All that a run may take; s.
    pub seconds: u64,
    /// Connections of the many-at-once set-up.
    pub connections: u32,
    /// Message sizes of the bandwidth test.
    pub bandwidth_sizes: Vec<usize>,
    /// A group is undecided if a difference of this size could have been missed; %.
    pub find_percent: u32,
    /// B fails if it is worse by this or more; %. 0: by any amount.
    pub fail_percent: u32,
    /// Connections in each direction that carry a stream at once. With more than one, only streams
    /// both ways are measured.
    pub streams: u32,
}

/// Message sizes of the latency test.
const LATENCY_SIZES: [u64; 2] = [8, 4096];
/// The message size of the message rate.
const RATE_SIZE: u64 = 8;

impl Default for Scope {
    fn default() -> Self {
        Self {
            seconds: 60,
            connections: 64,
            bandwidth_sizes: vec![64 << 10, 256 << 10],
            find_percent: 5,
            fail_percent: 0,
            streams: 1,
        }
    }
}

impl Scope {
    /// The difference that must not be missed, as a fraction.
    pub fn find(&self) -> f64 {
        f64::from(self.find_percent) / 100.0
    }

    /// A smaller loss is no failure; a fraction.
    pub fn fail(&self) -> f64 {
        f64::from(self.fail_percent) / 100.0
    }

    /// What is measured.
    pub fn rows(&self) -> Vec<Key> {
        let stream = |metric, bytes, direction| Key { metric, bytes, direction, depth: DEPTH };
        let mut rows = Vec::new();
        if self.streams == 1 {
            rows.extend(
                LATENCY_SIZES.map(|bytes| Key {
                    depth: 1,
                    ..stream(Metric::Latency, bytes, Direction::Both)
                }),
            );
            rows.extend(Direction::MEASURED.map(|way| stream(Metric::MessageRate, RATE_SIZE, way)));
        }
        for &bytes in &self.bandwidth_sizes {
            let ways = Direction::MEASURED
                .into_iter()
                .filter(|way| self.streams == 1 || *way == Direction::Both);
            rows.extend(ways.map(|way| stream(Metric::Bandwidth, bytes as u64, way)));
        }
        if self.streams == 1 {
            rows.extend(
                [(Metric::SetupOne, 1), (Metric::SetupMany, self.connections)]
                    .map(|(metric, depth)| Key { depth, ..stream(metric, 0, Direction::Forward) }),
            );
        }
        rows
    }

    /// What a verifying pair does.
    pub fn verifying(&self) -> Vec<Task> {
        let mut sizes: Vec<usize> =
            self.rows().iter().map(|row| row.bytes as usize).filter(|bytes| *bytes > 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        vec![Task::Verify { sizes }]
    }
}

/// The seed of message `index` that `rank` sends in the test `test`.
pub fn seed(test: u64, rank: usize, index: u64) -> u64 {
    word(test.wrapping_mul(2).wrapping_add(rank as u64), index)
}

/// Writes the message.
pub fn fill(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<()> {
    // SAFETY: the caller fills what it is about to send; no receive is posted there.
    unsafe { memory.with(offset, len, |bytes| payload::fill(bytes, seed)) }
}

/// Compares `len` bytes with the message.
pub fn check(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<Option<Difference>> {
    // SAFETY: the caller looks at a receive that is done.
    unsafe { memory.with(offset, len, |bytes| payload::difference(bytes, seed)) }
}

/// How many of `len` bytes are not the message's.
pub fn wrong_bytes(memory: &Buffer, offset: usize, len: usize, seed: u64) -> Result<u64> {
    // SAFETY: the caller looks at a receive that is done, or at memory that no receive is posted
    // for.
    unsafe { memory.with(offset, len, |bytes| payload::differences(bytes, seed) as u64) }
}

/// Looks for a byte that is not `value`.
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
