//! What is measured.

use serde::{Deserialize, Serialize};

/// A quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time from `listen` until both ends of one connection are ready, nothing else going on; ms.
    SetupOne,
    /// The same for many connections, made in batches; ms for all.
    SetupMany,
    /// Half the round trip of a ping-pong with pre-posted receives; microseconds.
    Latency,
    /// Messages a second of a stream; millions.
    MessageRate,
    /// Bytes a second of a stream; 10^9.
    Bandwidth,
    /// Bytes a second of plain memcpy over the same memory; 10^9.
    Copy,
}

/// Which way a quantity gets better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Times.
    Lower,
    /// Rates.
    Higher,
}

impl Metric {
    /// The unit of its values.
    pub fn unit(self) -> &'static str {
        match self {
            Self::SetupOne | Self::SetupMany => "ms",
            Self::Latency => "us",
            Self::MessageRate => "Mmsg/s",
            Self::Bandwidth | Self::Copy => "GB/s",
        }
    }

    /// The value that two sides are compared by.
    pub fn headline(self) -> &'static str {
        match self {
            Self::SetupMany => "total",
            Self::SetupOne | Self::Latency | Self::MessageRate | Self::Bandwidth | Self::Copy => "typ",
        }
    }

    /// Which way it gets better.
    pub fn better(self) -> Better {
        match self {
            Self::SetupOne | Self::SetupMany | Self::Latency => Better::Lower,
            Self::MessageRate | Self::Bandwidth | Self::Copy => Better::Higher,
        }
    }
}
