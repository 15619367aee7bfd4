//! The status of a completion: why a work request failed.

use std::fmt;

/// `enum ibv_wc_status`, as a plain number: a newer library may report an unknown one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// The work request succeeded.
    pub const SUCCESS: Self = Self(0);
    /// The peer's device did not acknowledge in time, after all retries.
    pub const RETRY_EXCEEDED: Self = Self(12);

    /// Whether the path, a port or a queue pair has failed, rather than the memory or the program.
    /// The same work request may succeed on a new queue pair. soft-RoCE reports a link that is down
    /// as status 2.
    pub fn is_recoverable(self) -> bool {
        matches!(self.0, 2 | 5 | 7 | 11 | 12 | 13 | 16 | 19 | 20 | 21)
    }

    fn name_and_cause(self) -> (&'static str, &'static str) {
        match self.0 {
            0 => ("success", ""),
            1 => ("local length error", "a message is longer than the port or the buffer allows"),
            2 => (
                "local queue pair operation error",
                "a bug, or a queue pair in the wrong state; soft-RoCE also reports it for a link that is down",
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
                "a link or switch on the path is down or has too small an MTU, or the GID index or traffic class is wrong",
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

    /// The likely cause; empty if unknown.
    pub fn cause(self) -> &'static str {
        self.name_and_cause().1
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.name_and_cause().0, self.0)
    }
}
