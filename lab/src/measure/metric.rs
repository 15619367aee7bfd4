//! The quantities that are measured: one table with everything that the rest of the program knows
//! of each. A new metric is a new entry of this table, and the code that measures it.

use serde::{Deserialize, Serialize};

use crate::measure::plan::Direction;

/// Which of two values of a metric is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The lower one, as of times.
    Lower,
    /// The higher one, as of rates.
    Higher,
}

/// A column that says what a row of a table is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// The message size.
    Size,
    /// Who sends.
    Direction,
    /// How many messages of that size were wrong in the verification.
    Wrong,
    /// How many connections.
    Connections,
    /// How many connections at once.
    AtOnce,
}

/// How a metric is drawn over message size.
#[derive(Debug, Clone, Copy)]
pub struct Chart {
    /// Above the panel of values.
    pub title: &'static str,
    /// Beside its y axis.
    pub y_label: &'static str,
    /// Above the panel of ratios.
    pub ratio_title: &'static str,
    /// The rows of this direction are drawn.
    pub direction: Direction,
}

/// The rows of a metric that are judged together.
#[derive(Debug, Clone, Copy)]
pub struct GroupOfRows {
    /// What the group is called.
    pub name: &'static str,
    /// The least and the greatest message size in it.
    pub sizes: (u64, u64),
}

/// Messages per second and bytes per message as a rate in the metric's unit.
pub type Rate = fn(f64, f64) -> f64;

/// What there is to know of a metric.
#[derive(Debug, Clone, Copy)]
pub struct MetricInfo {
    /// What rows and tasks of it are called.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: &'static str,
    /// The value that two sides are compared by.
    pub headline: &'static str,
    /// Which of two values is the better one.
    pub better: Better,
    /// The rate that a stream of messages has; none if it is not measured by a stream.
    pub rate: Option<Rate>,
    /// The title of its table; none if reports have no table of it.
    pub title: Option<&'static str>,
    /// The columns that say what a row is about.
    pub labels: &'static [Label],
    /// The values that a table shows of each side.
    pub shown: &'static [&'static str],
    /// How it is drawn, if it is.
    pub chart: Option<Chart>,
    /// Its rows that are judged together.
    pub group: Option<GroupOfRows>,
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

const ANY_SIZE: (u64, u64) = (0, u64::MAX);

metrics! {
    /// Half the round trip of a ping-pong with pre-posted receives; microseconds.
    Latency = MetricInfo {
        name: "latency",
        unit: "us",
        headline: "typ",
        better: Better::Lower,
        rate: None,
        title: Some("Latency: half round trip of a ping-pong, us"),
        labels: &[Label::Size, Label::Wrong],
        shown: &["min", "typ", "p99"],
        chart: Some(Chart {
            title: "Latency: half round trip, 1 in flight",
            y_label: "us (solid: typ, dashed: p99)",
            ratio_title: "Latency B/A (below 1: B is better)",
            direction: Direction::Both,
        }),
        group: Some(GroupOfRows { name: "latency 8 B to 4 KiB", sizes: ANY_SIZE }),
    };
    /// Messages a second of a stream; millions.
    MessageRate = MetricInfo {
        name: "message rate",
        unit: "Mmsg/s",
        headline: "typ",
        better: Better::Higher,
        rate: Some(|messages, _| messages / 1e6),
        title: Some("Message rate: 8 in flight, Mmsg/s (10^6 messages a second)"),
        labels: &[Label::Size, Label::Direction, Label::Wrong],
        shown: &["typ", "peak"],
        chart: None,
        group: Some(GroupOfRows { name: "message rate 8 B", sizes: ANY_SIZE }),
    };
    /// Bytes a second of a stream; 10^9.
    Bandwidth = MetricInfo {
        name: "bandwidth",
        unit: "GB/s",
        headline: "typ",
        better: Better::Higher,
        rate: Some(|messages, bytes| messages * bytes / 1e9),
        title: Some("Bandwidth: 8 in flight, GB/s (10^9 bytes a second; `both` is the sum of two directions)"),
        labels: &[Label::Size, Label::Direction, Label::Wrong],
        shown: &["typ", "peak"],
        chart: Some(Chart {
            title: "Bandwidth: rank 0 to rank 1, 8 in flight",
            y_label: "GB/s (10^9 B/s)",
            ratio_title: "Bandwidth B/A (above 1: B is better)",
            direction: Direction::Forward,
        }),
        group: Some(GroupOfRows { name: "bandwidth 64 KiB to 4 MiB", sizes: (64 << 10, 4 << 20) }),
    };
    /// Time from `listen` until both ends of one connection are ready, nothing else going on; ms.
    SetupOne = MetricInfo {
        name: "one connection",
        unit: "ms",
        headline: "typ",
        better: Better::Lower,
        rate: None,
        title: Some("Connection set-up, one by one, ms each (listen until both ends are ready)"),
        labels: &[Label::Connections, Label::AtOnce],
        shown: &["min", "typ", "p99"],
        chart: None,
        group: Some(GroupOfRows { name: "one connection", sizes: ANY_SIZE }),
    };
    /// The same for many connections, made in batches; ms for all.
    SetupMany = MetricInfo {
        name: "many connections",
        unit: "ms",
        headline: "total",
        better: Better::Lower,
        rate: None,
        title: Some("Connection set-up, many at once, ms for all"),
        labels: &[Label::Connections, Label::AtOnce],
        shown: &["total"],
        chart: None,
        group: Some(GroupOfRows { name: "many connections", sizes: ANY_SIZE }),
    };
}
