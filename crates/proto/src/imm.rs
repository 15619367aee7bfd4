//! The immediate data, [`Imm`]: which message an RDMA WRITE belongs to, and how long the message
//! is.

use super::cts::SlotIndex;

/// The part of an immediate about its message's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthCode {
    /// The whole length in bytes, below [`Imm::EXPLICIT_LIMIT`].
    Bytes(u32),
    /// The length is that of the clear-to-send.
    Full,
    /// The low 16 bits of any other length. The high ones come in a second immediate.
    Low(u16),
    /// The high 16 bits.
    High(u16),
    /// Nothing: a further stripe of a message whose first stripe carries the length.
    Stripe,
}

/// The 32 bits of immediate data: the slot of the message's clear-to-send, and a [`LengthCode`].
///
/// ```text
/// bit 31        23 22 21                     0
///     slot (9)     0  length (22)                Bytes
///     slot (9)     1  00 0…                      Full
///     slot (9)     1  01 0… low 16               Low
///     slot (9)     1  10 0… high 16              High
///     slot (9)     1  11 0…                      Stripe
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imm(u32);

const LENGTH_CODE_BITS: u32 = 32 - SlotIndex::BITS;
/// Set in all but [`LengthCode::Bytes`].
const CODED: u32 = 1 << (LENGTH_CODE_BITS - 1);
const KIND_SHIFT: u32 = LENGTH_CODE_BITS - 3;
const KIND_FULL: u32 = 0;
const KIND_LOW: u32 = 1;
const KIND_HIGH: u32 = 2;
const KIND_STRIPE: u32 = 3;

const _: () = assert!(LENGTH_CODE_BITS == 23);

impl Imm {
    /// Lengths from here on need [`LengthCode::Full`], or [`LengthCode::Low`] and
    /// [`LengthCode::High`].
    pub const EXPLICIT_LIMIT: u32 = CODED;

    /// The immediate for the message of `slot`.
    #[inline]
    pub fn new(slot: SlotIndex, code: LengthCode) -> Self {
        let code = match code {
            LengthCode::Bytes(n) => n & (CODED - 1),
            LengthCode::Full => CODED | KIND_FULL << KIND_SHIFT,
            LengthCode::Low(n) => CODED | KIND_LOW << KIND_SHIFT | u32::from(n),
            LengthCode::High(n) => CODED | KIND_HIGH << KIND_SHIFT | u32::from(n),
            LengthCode::Stripe => CODED | KIND_STRIPE << KIND_SHIFT,
        };
        Self(slot.to_bits() << LENGTH_CODE_BITS | code)
    }

    /// The 32 bits, in host order.
    #[inline]
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// Decodes the immediate, in host order. Every value has a meaning; [`super::recv::RecvFlow`]
    /// checks it.
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Slot of the message's clear-to-send.
    #[inline]
    pub fn slot(self) -> SlotIndex {
        SlotIndex::from_bits(self.0 >> LENGTH_CODE_BITS)
    }

    /// The message's length, or part of it.
    #[inline(always)]
    pub fn length_code(self) -> LengthCode {
        if self.0 & CODED == 0 {
            return LengthCode::Bytes(self.0 & (CODED - 1));
        }
        let half = self.0 as u16;
        match self.0 >> KIND_SHIFT & 3 {
            KIND_FULL => LengthCode::Full,
            KIND_LOW => LengthCode::Low(half),
            KIND_HIGH => LengthCode::High(half),
            _ => LengthCode::Stripe,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_immediate_is_read_as_it_was_made(seq: u32, n in 0..Imm::EXPLICIT_LIMIT, half: u16) {
            let codes = [LengthCode::Bytes(n), LengthCode::Full, LengthCode::Low(half), LengthCode::High(half), LengthCode::Stripe];
            for code in codes {
                let imm = Imm::from_bits(Imm::new(SlotIndex::of(seq), code).to_bits());
                prop_assert_eq!((imm.slot(), imm.length_code()), (SlotIndex::of(seq), code));
            }
        }
    }
}
