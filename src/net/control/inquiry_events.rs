//! What receives the frames by which the ends of a connection ask each other what they wait for.

use crate::proto::frame::Frame;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError, Weak};

/// What answers for the ends of a process.
pub trait InquiryEvents: Debug + Send + Sync {
    /// The peer of the end with this number asks or tells something. Called under the lock of the [driver](super::driver): it notes that and
    /// wakes a thread, and calls nothing of the control connection.
    fn handle_frame(&self, end: u64, frame: &Frame);
}

/// The way to what answers for one end. What comes before there is one is dropped: the peer asks again.
#[derive(Debug, Default)]
pub(super) struct InquirySlot(Mutex<Option<(u64, Weak<dyn InquiryEvents>)>>);

impl InquirySlot {
    /// From now on `handler` receives what comes, with the number `end`.
    pub(super) fn open(&self, end: u64, handler: Weak<dyn InquiryEvents>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, handler));
    }

    /// Hands `frame` over.
    pub(super) fn hand_over(&self, frame: &Frame) {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((end, handler)) = slot.as_ref().and_then(|(end, handler)| Some((*end, handler.upgrade()?))) {
            handler.handle_frame(end, frame);
        }
    }
}
