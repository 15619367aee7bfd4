//! One message that the receiver waits for: what is known of its length, and which stripes have arrived.

use super::imm::LengthCode;
use super::requests::RequestId;
use super::{QpIndex, Violation, violation};

/// The message of one slot of the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// The receive request that the message is for.
    pub(super) request: RequestId,
    /// Size of its buffer in bytes.
    pub(super) posted: u32,
    /// Its length in bytes, as far as `known` says.
    pub(super) length: u32,
    /// Queue pairs on which a stripe has arrived, as a bit mask.
    pub(super) qps: u32,
    /// Index of the buffer within the request.
    pub(super) index: u8,
    pub(super) stage: Stage,
    known: LengthState,
    /// Stripes that have arrived.
    pub(super) stripes: u8,
}

/// How much of a message has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// All of it.
    Whole,
    /// Nothing.
    Untouched,
    /// Something, or part of its length.
    Begun,
}

/// What is known of a message's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LengthState {
    Unknown,
    LowHalf,
    Known,
}

impl Arrival {
    /// Nothing has arrived yet.
    #[inline]
    pub(super) fn new(request: RequestId, index: u8, posted: u32) -> Self {
        let (stage, known) = (Stage::Untouched, LengthState::Unknown);
        Self { request, posted, length: 0, qps: 0, index, stage, known, stripes: 0 }
    }

    /// Whether some of the message has not arrived.
    #[inline(always)]
    pub(super) fn is_pending(&self) -> bool {
        self.stage != Stage::Whole
    }

    /// The whole message has arrived on `qp`, in one stripe of `length` bytes.
    #[inline(always)]
    pub(super) fn handle_whole(&mut self, qp: QpIndex, length: u32) {
        (self.stage, self.length, self.qps) = (Stage::Whole, length, 1 << qp.0);
    }

    /// For a page: what has come.
    #[cfg(test)]
    pub(super) fn state_name(&self) -> &'static str {
        match (self.stage, self.known) {
            (Stage::Untouched, _) => "nothing has come",
            (Stage::Whole, _) => "whole",
            (Stage::Begun, LengthState::Unknown) => "a stripe, no length",
            (Stage::Begun, LengthState::LowHalf) => "low half of the length",
            (Stage::Begun, LengthState::Known) => "length, not all stripes",
        }
    }

    /// What has arrived of it counts no more.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.request, self.index, self.posted);
    }

    /// Takes in what an immediate says of the length. Returns whether it is the last immediate of its stripe.
    ///
    /// # Errors
    /// It contradicts an earlier one, or the message is longer than the buffer.
    pub(super) fn handle_length(&mut self, code: LengthCode) -> Result<bool, Violation> {
        match code {
            LengthCode::Stripe => {}
            LengthCode::Bytes(n) => self.set_length(n)?,
            LengthCode::Full => self.set_length(self.posted)?,
            LengthCode::Low(_) if self.known != LengthState::Unknown => {
                return Err(violation!("the low half of a length came after the length, or twice"));
            }
            LengthCode::Low(n) => {
                (self.known, self.length) = (LengthState::LowHalf, u32::from(n));
                return Ok(false);
            }
            LengthCode::High(_) if self.known != LengthState::LowHalf => {
                return Err(violation!("the high half of a length came before the low one"));
            }
            LengthCode::High(n) => {
                self.known = LengthState::Unknown;
                self.set_length(u32::from(n) << 16 | self.length)?;
            }
        }
        Ok(true)
    }

    /// Whether the whole length is known.
    pub(super) fn is_length_known(&self) -> bool {
        self.known == LengthState::Known
    }

    /// Counts a stripe that has arrived on `qp`. Returns how many have arrived.
    pub(super) fn count_stripe(&mut self, qp: QpIndex) -> u8 {
        self.qps |= 1 << qp.0;
        self.stripes += 1;
        self.stripes
    }

    /// Takes in the whole length.
    ///
    /// # Errors
    /// The message is longer than the buffer, or its length came before.
    fn set_length(&mut self, length: u32) -> Result<(), Violation> {
        if length > self.posted {
            return Err(violation!("a message of {} bytes for a buffer of {}", length, self.posted));
        }
        if self.known != LengthState::Unknown {
            return Err(violation!("the length of a message came twice"));
        }
        (self.known, self.length) = (LengthState::Known, length);
        Ok(())
    }
}
