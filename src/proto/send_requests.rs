//! The requests of the sending end: stripes that are acknowledged, and requests that are complete.

use super::requests::{Entries, Entry, RequestId};
use super::send::SendFlow;
use super::shared::Shared;
use super::{Violation, violation};
use std::sync::Arc;

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

    /// Begins message `seq`.
    #[inline(always)]
    pub(super) fn begin(&self, seq: u32, addr: u64, length: u32, stripes: u32) {
        self.length.set(length);
        self.pending_stripes.set(stripes as i32);
        self.addr.set(addr);
        self.seq.set(seq);
    }
}

impl SendFlow {
    /// One stripe of request `id` has been acknowledged.
    ///
    /// # Errors
    /// There is no such request, or all of its stripes have been acknowledged before.
    #[inline]
    pub fn handle_completion(&mut self, id: RequestId) -> Result<(), Violation> {
        match self.complete_stripe(id) {
            true => Ok(()),
            false => Err(violation!("send completion for {:?}, which is not outstanding", id)),
        }
    }

    /// As [`Self::handle_completion`]; false where that fails.
    #[inline(always)]
    pub fn complete_stripe(&mut self, id: RequestId) -> bool {
        match self.requests.get(id) {
            Some(request) if request.is_pending() => {
                request.pending_stripes.add(-1);
                true
            }
            _ => false,
        }
    }

    /// Bytes sent, once request `id` is complete. The id is stale afterwards.
    ///
    /// # Errors
    /// The id is stale.
    pub fn poll_done(&mut self, id: RequestId) -> Result<Option<u32>, Violation> {
        self.requests.tested(id)?;
        let entries = Arc::clone(self.requests.entries());
        self.finish(&entries[id.index()])
    }

    /// As [`Self::poll_done`], of the request in `entry`.
    ///
    /// # Errors
    /// The request has ended.
    #[inline(always)]
    pub fn finish(&mut self, entry: &Entry<SendRequest>) -> Result<Option<u32>, Violation> {
        match self.finish_if_complete(entry) {
            None if !entry.value.is_pending() => Err(entry.ended()),
            finished => Ok(finished),
        }
    }

    /// As [`Self::finish`]; `None`, too, if the request has ended.
    #[inline(always)]
    pub fn finish_if_complete(&mut self, entry: &Entry<SendRequest>) -> Option<u32> {
        let request = &entry.value;
        if request.pending_stripes.get() != 0 {
            return None;
        }
        request.pending_stripes.set(ENDED);
        self.requests.release(entry);
        Some(request.length.get())
    }

    /// All entries of the table of requests.
    pub fn entries(&self) -> &Entries<SendRequest> {
        self.requests.entries()
    }

    /// The entry of request `id`.
    pub fn entry(&self, id: RequestId) -> Option<&Entry<SendRequest>> {
        self.requests.entry(id)
    }
}
