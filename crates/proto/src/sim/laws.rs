//! What has to hold in every run, checked at every step; a run that breaks a law panics.
//!
//! 1. A completed receive has the bytes and the length of its own message, and the message was sent.
//! 2. Nothing is written into a buffer after its receive has completed, nor outside of a buffer, nor with the key of another rail.
//! 3. A send that completes has been delivered whole to a receiver that lives.
//! 4. Every request ends exactly once, completed or with an error.
//! 5. An end reports an error only if there was a fault that ends connections, and it is one that the fault explains.
//! 6. A slot of the ring never goes back to an older clear-to-send.
//! 7. After an error of an end, `isend` and `irecv` return an error there, and nothing is posted.
//! 8. A run ends in a bounded number of steps after its last fault: nothing waits for ever.
//! 9. A message finds a receive on each queue pair that carries an immediate of it; the fabric looks at that.
//!
//! What cannot be kept without recovery is counted, and `mod.rs` expects that it happens: a write that was delayed may land in a buffer
//! after its receive has ended *with an error* and before its region is deregistered. See [`Laws::late_writes`].

use super::fabric::{Bytes, WorkRequest};
use super::plan::{Message, Plan, buffer_at, rkey};
use crate::QpIndex;
use crate::cts::{Cts, CtsWords};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The request is not posted, or not ended.
    Pending,
    Completed,
    Failed,
}

/// One message, with its send, its receive and its buffer.
#[derive(Debug)]
struct Record {
    message: Message,
    is_sent: bool,
    send: State,
    receive: State,
    /// Whether the buffer's region is registered.
    is_registered: bool,
    /// Bytes that were written: offset, length, of which message.
    pieces: Vec<(u32, u32, usize)>,
}

#[derive(Debug)]
pub(super) struct Laws {
    records: Vec<Record>,
    rails: usize,
    /// Whether there was a fault that ends the connection.
    pub(super) may_fail: bool,
    /// Whether the receiver's process lives.
    pub(super) receiver_lives: bool,
    /// Writes into buffers whose receive has ended with an error.
    pub(super) late_writes: u32,
}

impl Laws {
    pub(super) fn new(plan: &Plan) -> Self {
        let record = |message: &Message| Record {
            message: *message,
            is_sent: false,
            send: State::Pending,
            receive: State::Pending,
            is_registered: true,
            pieces: Vec::new(),
        };
        let records = plan.messages.iter().map(record).collect();
        Self { records, rails: plan.rails(), may_fail: false, receiver_lives: true, late_writes: 0 }
    }

    /// Whether the bytes of `wr` are in a registered region. Without bytes they are.
    pub(super) fn is_registered(&self, wr: &WorkRequest) -> bool {
        let target = wr.bytes.filter(|bytes| bytes.length > 0);
        target.is_none_or(|bytes| self.records[buffer_at(bytes.addr).0].is_registered)
    }

    pub(super) fn handle_write(&mut self, qp: QpIndex, bytes: Bytes) {
        if bytes.length == 0 {
            return;
        }
        let (buffer, at) = buffer_at(bytes.addr);
        let record = &mut self.records[buffer];
        assert_eq!(bytes.rkey, rkey(buffer, usize::from(qp.0) % self.rails), "the key of another rail");
        assert!(at + bytes.length <= record.message.posted, "a write past the end of buffer {buffer}");
        assert_eq!(at, bytes.offset, "bytes in another place than they came from");
        assert!(record.is_registered, "a write into buffer {buffer}, which is not registered any more");
        match record.receive {
            State::Pending => record.pieces.push((at, bytes.length, bytes.message)),
            State::Completed => panic!("a write into buffer {buffer}, whose receive has completed"),
            State::Failed => self.late_writes += 1,
        }
    }

    pub(super) fn handle_cts(before: &CtsWords, after: &CtsWords) {
        let (before, after) = (Cts::seq_of(before[3]), Cts::seq_of(after[3]));
        assert!(after > before, "a slot goes from clear-to-send {before} back to {after}");
    }

    pub(super) fn handle_sent(&mut self, message: usize) {
        assert!(!std::mem::replace(&mut self.records[message].is_sent, true), "message {message} is sent twice");
    }

    pub(super) fn handle_send_completed(&mut self, message: usize, length: u32) {
        let record = &mut self.records[message];
        assert_eq!(length, record.message.arriving(), "the sender reports another length");
        record.send.end(State::Completed, "send", message);
        if self.receiver_lives && record.receive != State::Failed {
            record.check_contents(message, self.may_fail);
        }
    }

    pub(super) fn handle_receive_completed(&mut self, buffer: usize, length: u32) {
        let record = &mut self.records[buffer];
        assert!(record.is_sent, "buffer {buffer} has a message that was not sent");
        assert_eq!(length, record.message.arriving(), "buffer {buffer} reports another length");
        record.receive.end(State::Completed, "receive", buffer);
        record.check_contents(buffer, self.may_fail);
    }

    pub(super) fn handle_send_failed(&mut self, message: usize) {
        assert!(self.may_fail, "send {message} fails without a fault");
        self.records[message].send.end(State::Failed, "send", message);
    }

    pub(super) fn handle_receive_failed(&mut self, buffer: usize) {
        assert!(self.may_fail, "receive {buffer} fails without a fault");
        self.records[buffer].receive.end(State::Failed, "receive", buffer);
    }

    /// The receiver deregisters the regions of all receives that have ended.
    pub(super) fn handle_deregistered(&mut self) {
        let ended = self.records.iter_mut().filter(|record| record.receive != State::Pending);
        ended.for_each(|record| record.is_registered = false);
    }

    /// Whether all messages were delivered, and both ends know it.
    pub(super) fn is_all_delivered(&self) -> bool {
        self.records.iter().all(|record| (record.send, record.receive) == (State::Completed, State::Completed))
    }

    /// Whether a message is known to be delivered at one end, and has failed at the other.
    pub(super) fn has_disagreement(&self) -> bool {
        self.records.iter().any(|record| (record.send, record.receive) == (State::Failed, State::Completed))
    }
}

impl State {
    fn end(&mut self, how: Self, what: &str, number: usize) {
        assert_eq!(*self, Self::Pending, "{what} {number} ends twice");
        *self = how;
    }
}

impl Record {
    /// Every byte of the message was written; once, unless bytes `may_repeat`.
    fn check_contents(&mut self, buffer: usize, may_repeat: bool) {
        self.pieces.sort_unstable();
        let mut end = 0;
        for (at, length, message) in &self.pieces {
            assert_eq!(*message, buffer, "buffer {buffer} has bytes of another message");
            assert!(*at == end || may_repeat && *at < end, "buffer {buffer} has a hole, or bytes that came twice");
            end = end.max(at + length);
        }
        assert_eq!(end, self.message.arriving(), "buffer {buffer} is incomplete");
    }
}
