//! What a row of a comparison is about. The quantities are one table with everything that the rest
//! of the program knows of each. A new metric is a new entry there, and the code that measures it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which of two values of a metric is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The lower one, as of times.
    Lower,
    /// The higher one, as of rates.
    Higher,
}

impl Better {
    /// How many times as good B is as A; `ratio` is B's value over A's.
    pub fn speed(self, ratio: f64) -> f64 {
        match self {
            Self::Lower => 1.0 / ratio,
            Self::Higher => ratio,
        }
    }
}

/// Messages per second and bytes per message as a rate in the metric's unit.
pub type Rate = fn(f64, f64) -> f64;

/// What there is to know of a metric.
#[derive(Debug, Clone, Copy)]
pub struct MetricInfo {
    /// What its rows together are called, and a row of it before its size.
    pub name: &'static str,
    /// What a value is.
    pub meaning: &'static str,
    /// The unit of its values.
    pub unit: &'static str,
    /// Which of two values is the better one.
    pub better: Better,
    /// The rate that a stream of messages has; none if it is not measured by a stream.
    pub rate: Option<Rate>,
    /// Blocks of a row in one set of connections; a multiple of four.
    pub blocks: usize,
}

/// Makes the enum, the list of all its values, and the table.
macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident = $info:expr;)*) => {
        /// A quantity. Reports show them in this order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Metric {
            $($(#[$doc])* $name),*
        }

        impl Metric {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What there is to know of it.
            pub fn info(self) -> &'static MetricInfo {
                match self {
                    $(Self::$name => const { &$info }),*
                }
            }
        }
    };
}

metrics! {
    /// Half the round trip of a ping-pong with pre-posted receives; microseconds.
    Latency = MetricInfo {
        name: "latency",
        meaning: "half the round trip of a ping-pong, the median of a block",
        unit: "us",
        better: Better::Lower,
        rate: None,
        blocks: 12,
    };
    /// Messages a second of a stream; millions.
    MessageRate = MetricInfo {
        name: "message rate",
        meaning: "messages a second, 8 in flight",
        unit: "Mmsg/s",
        better: Better::Higher,
        rate: Some(|messages, _| messages / 1e6),
        blocks: 12,
    };
    /// Bytes a second of a stream; 10^9.
    Bandwidth = MetricInfo {
        name: "bandwidth",
        meaning: "bytes a second, 8 messages in flight; `both` is the sum of two directions",
        unit: "GB/s",
        better: Better::Higher,
        rate: Some(|messages, bytes| messages * bytes / 1e9),
        blocks: 12,
    };
    /// Time from `listen` until both ends of one connection are ready, nothing else going on; ms.
    SetupOne = MetricInfo {
        name: "one connection",
        meaning: "from `listen` until both ends are ready, one connection at a time",
        unit: "ms",
        better: Better::Lower,
        rate: None,
        blocks: 8,
    };
    /// The same for many connections at once; ms for all.
    SetupMany = MetricInfo {
        name: "many connections",
        meaning: "the same of many connections at once, until the last is ready",
        unit: "ms",
        better: Better::Lower,
        rate: None,
        blocks: 4,
    };
}

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

impl Key {
    /// `bandwidth 1M 0->1`.
    pub fn name(&self) -> String {
        let name = self.metric.info().name;
        match self.metric {
            Metric::Latency => format!("{name} {}", size_text(self.bytes)),
            Metric::MessageRate | Metric::Bandwidth => {
                format!("{name} {} {}", size_text(self.bytes), self.direction)
            }
            Metric::SetupOne => name.into(),
            Metric::SetupMany => format!("{} connections", self.depth),
        }
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
    /// Those that are measured.
    pub const MEASURED: [Self; 2] = [Self::Forward, Self::Both];

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
