//! The requests of the receiving end: messages that have arrived, and requests that are complete.

use super::recv::RecvFlow;
use super::requests::{Entries, Entry, RequestId};
use super::shared::Shared;
use super::{MAX_GROUP, Violation};
use std::sync::Arc;

/// A receive request: the number of its messages, how many of them have not arrived, and the bytes of the others.
#[derive(Debug)]
pub struct RecvRequest {
    /// [`ENDED`] once NCCL has been told that the request is complete.
    pub(super) pending: Shared<i8>,
    pub(super) count: Shared<u8>,
    pub(super) lengths: [Shared<u32>; MAX_GROUP],
}

/// The request is no more.
pub(super) const ENDED: i8 = -1;

impl Default for RecvRequest {
    fn default() -> Self {
        Self { pending: Shared::new(ENDED), count: Shared::default(), lengths: Default::default() }
    }
}

impl RecvRequest {
    /// Whether it has begun, and some of its messages have not arrived.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.pending.get() > 0
    }

    /// Begins a group of `count` messages.
    #[inline(always)]
    pub(super) fn begin(&self, count: u8) {
        self.count.set(count);
        self.pending.set(count as i8);
    }

    /// Message number `index` has arrived, of `length` bytes.
    #[inline(always)]
    pub(super) fn complete(&self, index: u8, length: u32) {
        self.lengths[usize::from(index) % MAX_GROUP].set(length);
        self.pending.add(-1);
    }
}

/// A receive request that is complete.
#[derive(Debug, Clone, Copy)]
pub enum Finished {
    /// It was for one message, of so many bytes.
    One(u32),
    /// It was for a group: [`RecvFlow::lengths`] tells of each message.
    Group,
}

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
        if let Some(length) = self.finish_if_one(entry) {
            return Ok(Some(Finished::One(length)));
        }
        if request.pending.get() != 0 {
            return if request.is_pending() { Ok(None) } else { Err(entry.ended()) };
        }
        request.pending.set(ENDED);
        self.requests.release(entry);
        Ok(Some(Finished::Group))
    }

    /// As [`Self::finish`]; `None`, too, if the request has ended, or is for a group.
    #[inline(always)]
    pub fn finish_if_one(&mut self, entry: &Entry<RecvRequest>) -> Option<u32> {
        let request = &entry.value;
        if request.pending.get() != 0 || request.count.get() != 1 {
            return None;
        }
        request.pending.set(ENDED);
        self.requests.release(entry);
        Some(request.lengths[0].get())
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
