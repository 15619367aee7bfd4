//! An end of a connection at one moment.

use super::numbers::Numbers;
use super::operation::Operation;
use crate::identity::Identity;

/// What is known of a peer without asking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contact {
    /// The control connection stands.
    Up,
    /// It is lost.
    Lost,
    /// The peer's process has ended, or has closed the connection.
    Gone,
}

/// An end at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Its numbers. Whether NCCL calls `isend` in vain is seen from `refusals`.
    pub numbers: Numbers,
    /// How often `isend` has been called in vain, modulo 2^32.
    pub refusals: u32,
    /// How often NCCL has called in vain, in either way, modulo 2^32.
    pub calls: u32,
    /// Whether requests are outstanding.
    pub has_requests: bool,
    /// Whether the connection is being recovered.
    pub recovers: bool,
    /// What is known of the peer.
    pub contact: Contact,
    /// The rank that sends on this connection, if messages tell.
    pub sender_rank: Option<u32>,
}

/// What has been found when an end was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// How it stands.
    Look(Look),
    /// NCCL's thread is inside, so it cannot be seen. NCCL calls.
    InCall,
    /// Another thread of Ferrite is inside, so it cannot be seen.
    Visited,
}

/// An end that has been looked at.
#[derive(Debug, Clone)]
pub struct Sight {
    /// Names the end within its process.
    pub id: u64,
    /// What has been found.
    pub found: Found,
    /// The peer, as far as it is known without asking.
    pub peer: Identity,
    /// The operation that the oldest outstanding messages are of, if NCCL has told.
    pub operation: Option<Operation>,
}
