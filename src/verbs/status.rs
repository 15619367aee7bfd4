//! Why a work request failed, in words.

use std::fmt;

/// `enum ibv_wc_status`, as a plain number: a newer library may report one that no enum knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// The work request succeeded.
    pub const SUCCESS: Self = Self(0);
    /// It was thrown away since an earlier one on its queue pair had failed, or the queue pair was taken down.
    pub const FLUSHED: Self = Self(5);
    /// The peer did not acknowledge in time, however often it was asked.
    pub const RETRY_EXCEEDED: Self = Self(12);

    fn words(self) -> (&'static str, &'static str) {
        match self.0 {
            0 => ("success", ""),
            1 => ("local length error", "a message is longer than the port or the buffer allows"),
            2 => (
                "local queue pair operation error",
                "a bug, or a queue pair in the wrong state; soft-RoCE says so as well of a link that is down",
            ),
            4 => (
                "local protection error",
                "memory was deregistered or freed too early, or the IOMMU or PCI ACS is in the way",
            ),
            5 => ("flushed", "an earlier work request on this queue pair failed"),
            6 => ("memory window bind error", ""),
            7 => ("bad response from the peer", "the fabric or the peer's device is faulty"),
            8 => ("local access error", "the memory region does not allow this access"),
            9 => ("remote invalid request", "the peer's queue pair refuses this kind of request"),
            10 => (
                "remote access error",
                "the peer deregistered or freed its buffer too early, or its IOMMU or PCI ACS is in the way",
            ),
            11 => ("remote operation error", "the peer's device failed"),
            12 => (
                "no acknowledgement from the peer, retries exhausted",
                "a link or switch on the path is down, or GID index or traffic class do not suit \
                 the fabric; NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT say how long to wait",
            ),
            13 => ("the peer was not ready, retries exhausted", "the peer's process is stuck"),
            14 => ("local RDD violation", ""),
            15 => ("remote invalid RD request", ""),
            16 => ("aborted by the peer", ""),
            19 => ("fatal device error", "reset or replace the device"),
            20 => ("response timeout", "the peer or the path is down"),
            21 => ("general error", "see the device's own error code"),
            _ => ("unknown status", ""),
        }
    }

    /// The likely cause, for a person; may be empty.
    pub fn cause(self) -> &'static str {
        self.words().1
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.words().0, self.0)
    }
}
