//! The requests of the sending end.

use super::shared::Shared;

/// A send request.
#[derive(Debug)]
pub struct SendRequest {
    /// Where its bytes are in this process.
    pub(super) addr: Shared<u64>,
    /// Sequence number of the clear-to-send that it has claimed.
    pub(super) seq: Shared<u32>,
    pub(super) length: Shared<u32>,
    /// Stripes that are not acknowledged; [`ENDED`] once NCCL has been told that there are none.
    pub(super) pending_stripes: Shared<i32>,
    /// The poll in which the last stripe but one completed.
    pub(super) poll: Shared<u32>,
}

/// The request is no more.
const ENDED: i32 = -1;

impl Default for SendRequest {
    fn default() -> Self {
        let [seq, length, poll] = Default::default();
        Self { addr: Shared::default(), seq, length, pending_stripes: Shared::new(ENDED), poll }
    }
}

impl SendRequest {
    /// Whether it has begun, and some of it is not acknowledged.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.pending_stripes.get() > 0
    }

    /// NCCL has been told that it is complete.
    #[inline(always)]
    pub(super) fn end(&self) {
        self.pending_stripes.set(ENDED);
    }

    /// Begins message `seq`.
    #[inline(always)]
    pub(super) fn begin(&self, seq: u32, addr: u64, length: u32, stripes: u32) {
        self.length.set(length);
        self.pending_stripes.set(stripes as i32);
        self.addr.set(addr);
        self.seq.set(seq);
    }
}
