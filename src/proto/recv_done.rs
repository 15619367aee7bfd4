//! What becomes of the receiving end's requests that are complete.

use super::recv::RecvFlow;
use super::recv_requests::{Finished, RecvRequest};
use super::requests::{Entries, Entry, Progress, RequestId};
use super::{MAX_GROUP, Violation};
use std::sync::Arc;

impl RecvFlow {
    /// The bytes of each message, in the order of the receive's buffers, if `id` is complete. The id is stale afterwards.
    ///
    /// # Errors
    /// The id is stale.
    pub fn poll_done(&mut self, id: RequestId) -> Result<Option<&[u32]>, Violation> {
        self.requests.tested(id)?;
        let entries = Arc::clone(self.requests.entries());
        let entry = &entries[id.index()];
        Ok(match self.finish(entry)? {
            None => None,
            Some(Finished::One(length)) => {
                self.done[0] = length;
                Some(&self.done[..1])
            }
            Some(Finished::Group) => Some(self.lengths(entry)),
        })
    }

    /// As [`Self::poll_done`], of the request in `entry`.
    ///
    /// # Errors
    /// The request has ended.
    #[inline(always)]
    pub fn finish(&mut self, entry: &Entry<RecvRequest>) -> Result<Option<Finished>, Violation> {
        let request = &entry.value;
        match self.progress(entry) {
            Progress::Pending => return Ok(None),
            Progress::Finished(length) => return Ok(Some(Finished::One(length))),
            Progress::Other if request.pending.get() != 0 => return Err(entry.ended()),
            Progress::Other => {}
        }
        request.end();
        self.requests.release(entry);
        Ok(Some(Finished::Group))
    }

    /// As [`Self::finish`], but for a group it finishes nothing; and no error is made if the request has ended.
    #[inline(always)]
    pub fn progress(&mut self, entry: &Entry<RecvRequest>) -> Progress {
        let request = &entry.value;
        match request.pending.get() {
            1.. => Progress::Pending,
            0 if request.count.get() == 1 => {
                request.end();
                self.requests.release(entry);
                Progress::Finished(request.lengths[0].get())
            }
            _ => Progress::Other,
        }
    }

    /// The bytes of each message of the request in `entry`, which has just been finished.
    pub fn lengths(&mut self, entry: &Entry<RecvRequest>) -> &[u32] {
        let RecvRequest { count, lengths, .. } = &entry.value;
        self.done.iter_mut().zip(lengths).for_each(|(done, length)| *done = length.get());
        &self.done[..usize::from(count.get()).min(MAX_GROUP)]
    }

    /// All entries of the table of requests.
    pub fn entries(&self) -> &Entries<RecvRequest> {
        self.requests.entries()
    }
}
