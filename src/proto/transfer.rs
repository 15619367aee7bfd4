//! One message that the sender has matched with a clear-to-send: what is to be posted to the queue pairs.

use super::QpIndex;
use super::cts::{Cts, CtsWords, ExtraKeys, SlotIndex, parse_extra_keys};
use super::imm::{Imm, LengthCode};
use super::requests::RequestId;
use super::stripe::{Stripe, Striping};

/// One message that is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The request, which completes when every stripe has been acknowledged.
    pub id: RequestId,
    /// Address of the peer's buffer.
    pub remote_addr: u64,
    /// Remote keys of the peer's buffer on the first two rails.
    pub rkeys: [u32; Cts::KEYS],
    /// Bytes to be sent: the lesser of the message and the buffer.
    pub length: u32,
    /// Slot of its clear-to-send. Until the message has arrived, no other clear-to-send gets this slot.
    pub slot: SlotIndex,
    /// Size of the peer's buffer in bytes.
    pub(super) posted: u32,
    /// Number of its stripes.
    pub(super) stripes: u32,
    pub(super) striping: Striping,
    /// Queue pair of its first stripe.
    pub(super) qp: QpIndex,
}

impl Transfer {
    /// The queue pair and the immediate of a message that has one stripe and is shorter than [`Imm::EXPLICIT_LIMIT`]: of all that
    /// [`Self::stripes`] returns for it.
    #[inline]
    pub fn single(&self) -> (QpIndex, Imm) {
        (self.qp, Imm::new(self.slot, LengthCode::Bytes(self.length)))
    }

    /// Remote key of the peer's buffer on rail number `rail`, which is 2 or 3. `read_extra_keys` reads the first half of the
    /// clear-to-send in a slot, if the keys are not `known`.
    pub(super) fn extra_key(
        &self,
        rail: u8,
        known: Option<ExtraKeys>,
        read_extra_keys: impl FnOnce(SlotIndex) -> CtsWords,
    ) -> u32 {
        let keys = known.unwrap_or_else(|| parse_extra_keys(&read_extra_keys(self.slot)));
        keys.get(usize::from(rail) - Cts::KEYS).copied().unwrap_or_default()
    }

    /// The rail that `qp` is on.
    #[inline]
    pub fn rail_of(&self, qp: QpIndex) -> u8 {
        self.striping.rail_of(qp)
    }

    /// The stripes in the order in which they are to be posted, each with its immediates. `weight` returns the weight of a
    /// queue pair: see [`super::send::SendFlow::weight_of`].
    pub fn stripes(&self, weight: impl Fn(QpIndex) -> u64) -> impl Iterator<Item = (Stripe, Immediates)> {
        self.striping
            .stripes(self.length, self.qp, weight)
            .enumerate()
            .map(|(i, stripe)| (stripe, self.immediates(i == 0)))
    }

    fn immediates(&self, is_first: bool) -> Immediates {
        let imm = |code| Imm::new(self.slot, code);
        let (first, second) = if !is_first {
            (LengthCode::Stripe, None)
        } else if self.length < Imm::EXPLICIT_LIMIT {
            (LengthCode::Bytes(self.length), None)
        } else if self.length == self.posted {
            (LengthCode::Full, None)
        } else {
            (LengthCode::Low(self.length as u16), Some(LengthCode::High((self.length >> 16) as u16)))
        };
        Immediates { first: imm(first), second: second.map(imm) }
    }
}

/// The immediates of a stripe: one, or two for a length that one cannot carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediates {
    /// Posted with the data, or in a trailing immediate write behind the data.
    pub first: Imm,
    /// Posted behind the first, in a write of no bytes.
    pub second: Option<Imm>,
}
