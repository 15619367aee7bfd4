//! What the two processes of a run do.

use serde::{Deserialize, Serialize};

use crate::nccl::library::Source;
use crate::verbs::libibverbs::Verbs;

/// Messages in flight, at most.
pub(crate) const DEPTH: usize = 8;
/// Receive buffers, so many that a message that is sent again has completed before its buffer is used next. Those that no receive is
/// posted for hold a guard pattern, so that a late write into one of them is seen.
pub(crate) const BUFFERS: usize = 3 * DEPTH;

/// One stream of messages from rank 0, the sender, to rank 1, the receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamPlan {
    /// How many messages.
    pub(crate) messages: u64,
    /// The size of each; bytes.
    pub(crate) bytes: usize,
    /// No message is sent earlier than so many microseconds after the one before it was due.
    pub(crate) period_us: u64,
    /// When the receiver waits for this message, with [`DEPTH`] receives posted, it makes no call for so many milliseconds.
    pub(crate) pause: Option<(u64, u64)>,
    /// From the end of the stream until all receive buffers are looked at again.
    pub(crate) settle_ms: u64,
    /// An end without progress for so long counts as hung.
    pub(crate) limit_ms: u64,
}

/// What happens to the TCP connection by which the two ends set up the stream's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LineFault {
    /// Both ends see it reset; a new one can be made at once.
    Cut,
    /// For so many milliseconds no byte arrives, on this one and on new ones.
    Silent(u64),
}

/// The order to both processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OutlastJob {
    /// The transport.
    pub(crate) source: Source,
    /// The software device.
    pub(crate) verbs: Verbs,
    /// Whether the transport is to use two ports as one device.
    pub(crate) is_fused: bool,
    /// The device of each rank, where it is not fused; `None` as for
    /// [`Transport::device_of`](crate::transport::instance::Transport::device_of).
    pub(crate) devices: [Option<usize>; 2],
    /// The messages.
    pub(crate) stream: StreamPlan,
    /// Faults of the TCP connection, and how many milliseconds after the start of the stream.
    pub(crate) line_faults: Vec<(u64, LineFault)>,
}
