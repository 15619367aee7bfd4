//! What is sent, over what.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Messages of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Case {
    /// Bytes of a message.
    pub(crate) bytes: usize,
    /// Messages in flight.
    pub(crate) depth: usize,
    /// Queue pairs of a connection on each rail. With more than one, messages are split over them.
    pub(crate) queue_pairs: usize,
    /// Ports that are one device: 1 or 2.
    pub(crate) rails: usize,
}

impl Case {
    /// The variables by which transports make it so.
    pub(crate) fn environment(self) -> [(&'static str, String); 4] {
        [
            ("NCCL_IB_QPS_PER_CONNECTION", self.queue_pairs.to_string()),
            ("NCCL_IB_SPLIT_DATA_ON_QPS", u8::from(self.queue_pairs > 1).to_string()),
            ("NCCL_IB_MERGE_NICS", u8::from(self.rails > 1).to_string()),
            ("SOFTRNIC_DEVICES", if self.rails > 1 { "4" } else { "2" }.into()),
        ]
    }

    /// Whether the connections of both are alike.
    pub(crate) fn connects_like(self, other: Self) -> bool {
        (self.queue_pairs, self.rails) == (other.queue_pairs, other.rails)
    }
}

/// `4 queue pairs, 1 rail`
pub(crate) fn connection_words(case: Case) -> String {
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    format!("{}, {}", plural(case.queue_pairs, "queue pair"), plural(case.rails, "rail"))
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B, {} in flight, {}", self.bytes, self.depth, connection_words(*self))
    }
}
