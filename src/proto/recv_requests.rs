//! The requests of the receiving end.

use super::MAX_GROUP;
use super::shared::Shared;

/// A receive request: the number of its messages, how many of them have not arrived, and the bytes of the others.
#[derive(Debug)]
pub struct RecvRequest {
    /// [`ENDED`] once NCCL has been told that the request is complete.
    pub(super) pending: Shared<i8>,
    pub(super) count: Shared<u8>,
    pub(super) lengths: [Shared<u32>; MAX_GROUP],
}

/// The request is no more.
const ENDED: i8 = -1;

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

    /// NCCL has been told that it is complete.
    #[inline(always)]
    pub(super) fn end(&self) {
        self.pending.set(ENDED);
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
    /// It was for a group.
    Group,
}
