//! What has to hold at every step of a run; a run that breaks a law panics.
//!
//! 1. Nothing is written into a buffer after its receive has completed.
//! 2. A completed receive has exactly its message: the length, no hole, no byte of another message
//!    or of another place.
//! 3. Each message completes once at each end, and both tell the same length.
//! 4. The k-th message of a tag is in the k-th buffer of that tag.
//! 5. No queue pair reads a message from memory after its send has completed.
//! 6. A place of the ring never goes from a newer to an older clear-to-send.
//! 7. An end composes or applies a missing list only when all of its earlier queue pairs are
//!    destroyed.
//! 8. Attempts only grow, and those of the two ends differ by one at most.
//! 9. What has arrived whole is not sent again.
//! 10. A run ends in a bounded number of steps after its last fault.
//! 11. There is an error only if the run has a fault that never ends, or a device that loses what
//!     it has acknowledged.
//! 12. Queue pairs that work are given up for other ones only after the peer has answered.
//! 13. At the end both ends run in one attempt, over all rails, and no queue pair is left over.

use super::super::fabric::Bytes;
use super::super::plan::{Message, Plan, buffer_at, rkey};
use crate::cts::{Cts, CtsWords};

#[derive(Debug)]
struct Record {
    message: Message,
    is_sent: bool,
    sent: Option<u32>,
    received: Option<u32>,
    /// Bytes that were written: offset and length.
    pieces: Vec<(u32, u32)>,
}

#[derive(Debug)]
pub(super) struct Laws {
    records: Vec<Record>,
}

impl Laws {
    pub(super) fn new(plan: &Plan) -> Self {
        let record = |message: &Message| Record {
            message: *message,
            is_sent: false,
            sent: None,
            received: None,
            pieces: Vec::new(),
        };
        Self { records: plan.messages.iter().map(record).collect() }
    }

    pub(super) fn handle_write(&mut self, rail: u8, bytes: Bytes) {
        if bytes.length == 0 {
            return;
        }
        let (buffer, at) = buffer_at(bytes.addr);
        let record = &mut self.records[buffer];
        assert_eq!(bytes.rkey, rkey(buffer, rail.into()), "the key of another rail");
        assert_eq!(bytes.message, buffer, "bytes of another message");
        assert_eq!(at, bytes.offset, "bytes in another place than they came from");
        assert!(
            at + bytes.length <= record.message.posted,
            "a write past the end of buffer {buffer}"
        );
        assert_eq!(
            record.received, None,
            "a write into buffer {buffer}, whose receive has completed"
        );
        record.pieces.push((at, bytes.length));
    }

    /// A queue pair reads `message` from memory.
    pub(super) fn handle_read(&self, message: usize) {
        assert_eq!(
            self.records[message].sent, None,
            "message {message} is read after its send has completed"
        );
    }

    pub(super) fn handle_cts(before: &CtsWords, after: &CtsWords) {
        let (before, after) = (Cts::seq_of(before[3]), Cts::seq_of(after[3]));
        assert!(after > before, "a slot goes from clear-to-send {before} back to {after}");
    }

    pub(super) fn handle_sent(&mut self, message: usize) {
        assert!(
            !std::mem::replace(&mut self.records[message].is_sent, true),
            "message {message} is sent twice"
        );
    }

    pub(super) fn handle_sent_again(&self, message: usize) {
        assert_eq!(
            self.records[message].received, None,
            "message {message} is sent again and has arrived"
        );
    }

    pub(super) fn handle_send_completed(&mut self, message: usize, length: u32) {
        let record = &mut self.records[message];
        assert_eq!(length, record.message.arriving(), "the sender reports another length");
        assert_eq!(record.sent.replace(length), None, "send {message} completes twice");
    }

    pub(super) fn handle_receive_completed(&mut self, buffer: usize, length: u32) {
        let record = &mut self.records[buffer];
        assert!(record.is_sent, "buffer {buffer} has a message that was not sent");
        assert_eq!(length, record.message.arriving(), "buffer {buffer} reports another length");
        assert_eq!(record.received.replace(length), None, "receive {buffer} completes twice");
        record.pieces.sort_unstable();
        let mut end = 0;
        for (at, length) in &record.pieces {
            assert!(*at <= end, "buffer {buffer} has a hole at {end}");
            end = end.max(at + length);
        }
        assert_eq!(end, length, "buffer {buffer} is incomplete");
    }

    pub(super) fn is_all_delivered(&self) -> bool {
        self.records.iter().all(|record| record.sent.is_some() && record.sent == record.received)
    }
}
