//! The quantities that are measured: one table with everything that the rest of the program knows
//! of each. A new metric is a new entry of this table, and the code that measures it.

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
