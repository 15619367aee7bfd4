//! One message on its way in: what has been told of its length, and which stripes are there.

use super::requests::RequestId;
use super::wire::Extent;
use super::{Lane, Violation, violation};

/// What is known of the message in one place of the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// Whose it is.
    pub(super) request: RequestId,
    pub(super) posted: u32,
    /// As much as `told` says.
    pub(super) length: u32,
    /// QpSet on which a stripe has arrived.
    pub(super) lanes: u32,
    /// Which buffer of the request.
    pub(super) index: u8,
    /// Whether it is still to come.
    pub(super) pending: bool,
    told: Told,
    /// Stripes that have arrived.
    pub(super) stripes: u8,
}

/// What the peer has told of a message's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    LowHalf,
    All,
}

impl Arrival {
    /// Nothing has arrived yet.
    #[inline]
    pub(super) fn new(request: RequestId, index: u8, posted: u32) -> Self {
        Self { request, posted, length: 0, lanes: 0, index, pending: true, told: Told::Nothing, stripes: 0 }
    }

    /// Notes what an immediate says of the length; whether a stripe is thereby complete.
    pub(super) fn accept(&mut self, extent: Extent) -> Result<bool, Violation> {
        match extent {
            Extent::Stripe => {}
            Extent::Bytes(n) => self.set_length(n)?,
            Extent::Full => self.set_length(self.posted)?,
            Extent::Low(_) if self.told != Told::Nothing => {
                return Err(violation!("the low half of a length came after the length, or twice"));
            }
            Extent::Low(n) => {
                (self.told, self.length) = (Told::LowHalf, u32::from(n));
                return Ok(false);
            }
            Extent::High(_) if self.told != Told::LowHalf => {
                return Err(violation!("the high half of a length came before the low one"));
            }
            Extent::High(n) => {
                self.told = Told::Nothing;
                self.set_length(u32::from(n) << 16 | self.length)?;
            }
        }
        Ok(true)
    }

    /// Whether the whole length has been told.
    #[inline(always)]
    pub(super) fn is_length_known(&self) -> bool {
        self.told == Told::All
    }

    /// A stripe has come on `lane`; how many there are.
    #[inline(always)]
    pub(super) fn count_stripe(&mut self, lane: Lane) -> u8 {
        self.lanes |= 1 << lane.0;
        self.stripes += 1;
        self.stripes
    }

    /// The whole length has been told.
    ///
    /// # Errors
    /// It does not fit the buffer, or was told before.
    #[inline(always)]
    pub(super) fn set_length(&mut self, length: u32) -> Result<(), Violation> {
        if length > self.posted {
            return Err(violation!("a message of {} bytes for a buffer of {}", length, self.posted));
        }
        if self.told != Told::Nothing {
            return Err(violation!("the length of a message came twice"));
        }
        (self.told, self.length) = (Told::All, length);
        Ok(())
    }
}
