//! The receiver's list of what has not arrived.

use crate::codec::{Reader, Writer};
use crate::cts::{Cts, ExtraKeys};
use crate::{MAX_MESSAGE, RING_SLOTS, Violation, violation};

/// A message that has not arrived whole: the clear-to-send of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MissingMessage {
    /// The clear-to-send, with the keys of rails 0 and 1.
    pub cts: Cts,
    /// The keys of rails 2 and 3; 0 on a connection of fewer rails.
    pub extra: ExtraKeys,
}

/// The messages that have a posted buffer and have not arrived whole. Every message before `next`
/// that is not listed has arrived.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MissingList {
    /// Sequence number before which all messages have arrived.
    pub oldest: u32,
    /// Sequence number of the next buffer. This and later ones are not covered: their
    /// clear-to-sends are written over the new queue pairs. At most [`RING_SLOTS`] after `oldest`.
    pub next: u32,
    /// In ascending order of sequence numbers, from `oldest` and before `next`.
    pub missing: Vec<MissingMessage>,
}

impl MissingList {
    /// How many messages have arrived since the connection was set up, modulo 2^32.
    pub fn arrived(&self) -> u32 {
        self.next.wrapping_sub(self.missing.len() as u32).wrapping_sub(1)
    }

    /// Checks a list from the peer.
    ///
    /// # Errors
    /// It covers more than [`RING_SLOTS`] messages; a message is not covered or out of order; a
    /// buffer is longer than any message.
    pub fn check(&self) -> Result<(), Violation> {
        let Self { oldest, next, missing } = self;
        let span = next.wrapping_sub(*oldest);
        if span as usize > RING_SLOTS {
            return Err(violation!(
                "a missing list of messages {oldest} to {next}; at most {RING_SLOTS} are allowed"
            ));
        }
        let mut least = 0;
        for MissingMessage { cts, .. } in missing {
            let place = cts.seq.wrapping_sub(*oldest);
            if place < least || place >= span {
                let seq = cts.seq;
                return Err(violation!(
                    "a missing list of messages {oldest} to {next} lists {seq} out of order"
                ));
            }
            if cts.length > MAX_MESSAGE {
                let (seq, length) = (cts.seq, cts.length);
                return Err(violation!(
                    "message {seq} of a missing list has {length} bytes; at most {MAX_MESSAGE} are allowed"
                ));
            }
            least = place + 1;
        }
        Ok(())
    }

    pub(super) fn emit(&self, to: &mut Writer) {
        to.u32(self.oldest);
        to.u32(self.next);
        to.u16(self.missing.len() as u16);
        for MissingMessage { cts, extra } in &self.missing {
            to.u16(cts.seq.wrapping_sub(self.oldest) as u16);
            to.u64(cts.addr);
            [cts.length, cts.tag]
                .into_iter()
                .chain(cts.rkeys)
                .chain(*extra)
                .for_each(|word| to.u32(word));
        }
    }

    pub(super) fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let (oldest, next, count) = (from.u32()?, from.u32()?, from.u16()?);
        let mut missing = Vec::new();
        for _ in 0..count {
            let seq = oldest.wrapping_add(from.u16()?.into());
            let (addr, length, tag) = (from.u64()?, from.u32()?, from.u32()?);
            let rkeys = [from.u32()?, from.u32()?];
            missing.push(MissingMessage {
                cts: Cts { addr, length, rkeys, tag, seq },
                extra: [from.u32()?, from.u32()?],
            });
        }
        let missing_list = Self { oldest, next, missing };
        missing_list.check()?;
        Ok(missing_list)
    }
}
