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
    /// Queue pairs of a connection on each rail. With more than one, messages are split over them. 0: as many as the environment says.
    pub(crate) queue_pairs: usize,
    /// Ports that are one device: 1 or 2.
    pub(crate) rails: usize,
}

impl Case {
    /// The variables by which transports make it so.
    pub(crate) fn environment(self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("NCCL_IB_MERGE_NICS", u8::from(self.rails > 1).to_string()),
            ("SOFTRNIC_DEVICES", if self.rails > 1 { "4" } else { "2" }.into()),
        ];
        if self.queue_pairs > 0 {
            all.push(("NCCL_IB_QPS_PER_CONNECTION", self.queue_pairs.to_string()));
            all.push(("NCCL_IB_SPLIT_DATA_ON_QPS", u8::from(self.queue_pairs > 1).to_string()));
        }
        all
    }

    /// Whether the connections of both are alike.
    pub(crate) fn connects_like(self, other: Self) -> bool {
        (self.queue_pairs, self.rails) == (other.queue_pairs, other.rails)
    }
}

/// `4 queue pairs, 1 rail`
pub(crate) fn connection_words(case: Case) -> String {
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    match case.queue_pairs {
        0 => plural(case.rails, "rail"),
        count => format!("{}, {}", plural(count, "queue pair"), plural(case.rails, "rail")),
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B, {} in flight, {}", self.bytes, self.depth, connection_words(*self))
    }
}
