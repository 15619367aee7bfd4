//! What becomes of the sending end's requests: stripes are acknowledged, and requests are complete.

use super::requests::{Entries, Entry, Progress, RequestId};
use super::send::SendFlow;
use super::send_requests::SendRequest;
use super::{Violation, violation};
use std::sync::Arc;

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
        match self.progress(entry) {
            Progress::Pending => Ok(None),
            Progress::Finished(length) => Ok(Some(length)),
            Progress::Other => Err(entry.ended()),
        }
    }

    /// As [`Self::finish`]; no error is made if the request has ended.
    #[inline(always)]
    pub fn progress(&mut self, entry: &Entry<SendRequest>) -> Progress {
        let request = &entry.value;
        match request.pending_stripes.get() {
            1.. => Progress::Pending,
            0 => {
                request.end();
                self.requests.release(entry);
                Progress::Finished(request.length.get())
            }
            _ => Progress::Other,
        }
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
