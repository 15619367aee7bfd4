//! The counters of one end of a connection.

use crate::codec::{Reader, Writer};
use crate::{Violation, violation};

/// Counts the messages of one end since set-up, by progress. Each counter is modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// The sending end.
    Sender {
        /// Clear-to-sends that have arrived.
        seen: u32,
        /// Messages that `isend` has accepted.
        sent: u32,
        /// Those of them that the peer's device has acknowledged.
        acknowledged: u32,
        /// Whether NCCL calls `isend` without success for lack of a clear-to-send.
        wants: bool,
    },
    /// The receiving end.
    Receiver {
        /// Buffers posted by `irecv`.
        posted: u32,
        /// Those of them whose clear-to-send has been written.
        announced: u32,
        /// Messages that have arrived.
        arrived: u32,
        /// Whether a flush is incomplete.
        flushes: bool,
    },
}

impl Numbers {
    /// Whether the end waits for anything.
    pub fn is_waiting(&self) -> bool {
        match *self {
            Self::Sender { sent, acknowledged, wants, .. } => sent != acknowledged || wants,
            Self::Receiver { posted, arrived, flushes, .. } => posted != arrived || flushes,
        }
    }

    /// The messages that it has moved to the next process; received messages count as negative.
    pub fn lead(&self) -> u32 {
        match *self {
            Self::Sender { sent, .. } => sent,
            Self::Receiver { arrived, .. } => arrived.wrapping_neg(),
        }
    }

    /// Whether it is a sending end.
    pub fn is_sender(&self) -> bool {
        matches!(self, Self::Sender { .. })
    }
}

/// The state of one end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Its counters.
    pub numbers: Numbers,
    /// Whether the connection is recovering.
    pub recovers: bool,
    /// Whether NCCL has requests outstanding here and has not called for them for a while.
    pub is_untested: bool,
    /// Milliseconds since it last changed.
    pub still_ms: u32,
}

impl End {
    pub(super) fn emit(&self, to: &mut Writer) {
        let (side, numbers, flag) = match self.numbers {
            Numbers::Sender { seen, sent, acknowledged, wants } => {
                (0, [seen, sent, acknowledged], wants)
            }
            Numbers::Receiver { posted, announced, arrived, flushes } => {
                (1, [posted, announced, arrived], flushes)
            }
        };
        to.u8(side);
        numbers.into_iter().for_each(|number| to.u32(number));
        [flag, self.recovers, self.is_untested].into_iter().for_each(|flag| to.u8(flag.into()));
        to.u32(self.still_ms);
    }

    pub(super) fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let side = from.u8()?;
        let [one, two, three] = [from.u32()?, from.u32()?, from.u32()?];
        let [flag, recovers, is_untested] = [from.flag()?, from.flag()?, from.flag()?];
        let numbers = match side {
            0 => Numbers::Sender { seen: one, sent: two, acknowledged: three, wants: flag },
            1 => Numbers::Receiver { posted: one, announced: two, arrived: three, flushes: flag },
            side => return Err(violation!("{side} is neither a sender nor a receiver")),
        };
        Ok(Self { numbers, recovers, is_untested, still_ms: from.u32()? })
    }
}
