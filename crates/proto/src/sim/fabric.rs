//! Work requests: what the [fabric](super::recovery) of the simulated recoveries carries.

use crate::cts::CtsWords;
use crate::requests::RequestId;

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Sender,
    Receiver,
}

impl End {
    pub(super) fn other(self) -> Self {
        if self == Self::Sender { Self::Receiver } else { Self::Sender }
    }
}

/// How a work request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Success,
    RetryExceeded,
    RemoteError,
    Flushed,
}

/// What a completion belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WrId {
    /// The last work request of a stripe, or one of the same stripe before it.
    Data {
        request: RequestId,
        extra: u8,
    },
    Cts,
    /// A receive work request.
    Receive {
        imm: u32,
    },
}

/// Bytes of a message that are written into a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) message: usize,
    pub(super) offset: u32,
    pub(super) length: u32,
}

/// An RDMA WRITE: of data, of clear-to-sends from half slot `.0` on, or of no bytes.
#[derive(Debug, Clone)]
pub(super) struct WorkRequest {
    pub(super) id: WrId,
    pub(super) bytes: Option<Bytes>,
    pub(super) cts: Option<(usize, Vec<CtsWords>)>,
    pub(super) imm: Option<u32>,
    pub(super) signaled: bool,
}
