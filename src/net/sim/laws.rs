//! What has to hold in every run, checked at every step; a run that breaks a law panics.
//!
//! 1. A completed receive has the bytes and the length of its own message, and the message was
//!    sent.
//! 2. Nothing is written into a buffer after its receive has completed, nor outside of a buffer,
//!    nor with the key of another rail.
//! 3. A send that completes has been delivered whole to a receiver that lives.
//! 4. Every request ends exactly once, completed or with an error.
//! 5. An end reports an error only if there was a fault that ends connections, and it is one that
//!    the fault explains.
//! 6. A slot of the ring never goes back to an older clear-to-send.
//! 7. After an error of an end, `isend` and `irecv` return an error there.
//! 8. A run ends in a bounded number of steps after its last fault: nothing waits for ever.
//! 9. A message finds a receive on each queue pair that carries an immediate of it.
//! 10. No queue overflows, nothing is posted with the key of other memory, and a run leaves no
//!     queue and no memory region behind.
//!
//! With recovery also:
//!
//! 11. A message that has arrived whole is neither sent again nor listed as missing.
//! 12. No queue pair reads a message from memory after its send has completed.
//! 13. The sender offers new queue pairs, and the receiver sends its missing list, only when the
//!     earlier queue pairs are destroyed.
//! 14. Attempts only grow.
//! 15. There is an error only after a fault that never ends, or if a device has lost data that it
//!     had acknowledged; then the error says so.
//! 16. While the control connection is broken, nothing that works is given up.
//! 17. At the end both ends run over all rails, and no other queue pair is left.
//!
//! The [fabric](super::fabric) looks at the keys, at 9 and at 10.
//!
//! What cannot be kept without recovery is counted, and `mod.rs` expects that it happens: a write
//! that was delayed may land in a buffer after its receive has ended *with an error* and before its
//! region is deregistered. See [`Laws::late_writes`].

use super::plan::{Message, Plan, place_of};
use crate::proto::cts::Cts;
use crate::proto::stripe::LL128_LINE_BYTES;

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
    /// Bytes that were written: offset, length, of which message.
    pieces: Vec<(u32, u32, usize)>,
}

#[derive(Debug)]
pub(super) struct Laws {
    records: Vec<Record>,
    /// Sends and receives that are not completed.
    left: usize,
    /// Whether there was a fault that ends the connection.
    pub(super) may_fail: bool,
    /// Whether bytes may come twice: a message is sent again after a fault.
    pub(super) may_repeat: bool,
    /// Whether a device has lost what it has acknowledged.
    pub(super) may_lie: bool,
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
            pieces: Vec::new(),
        };
        let records: Vec<_> = plan.messages.iter().map(record).collect();
        Self {
            left: 2 * records.len(),
            records,
            may_fail: false,
            may_repeat: false,
            may_lie: false,
            receiver_lives: true,
            late_writes: 0,
        }
    }

    /// `length` bytes at `source` have been written to `target`.
    pub(super) fn handle_write(&mut self, source: u64, target: u64, length: u32) {
        let ((message, offset), (buffer, at)) = (place_of(source), place_of(target));
        let record = &mut self.records[buffer];
        assert!(at + length <= record.message.posted, "a write past the end of buffer {buffer}");
        assert_eq!(at, offset, "bytes in another place than they came from");
        assert_eq!(offset % LL128_LINE_BYTES, 0, "a line is cut");
        match record.receive {
            State::Pending => record.pieces.push((at, length, message)),
            State::Completed => panic!("a write into buffer {buffer}, whose receive has completed"),
            State::Failed => self.late_writes += 1,
        }
    }

    /// The words `before` of the ring have become those `after`, of clear-to-sends of so many
    /// `halves`, from slot `first` on.
    pub(super) fn handle_cts(first: usize, halves: usize, before: &[u64], after: &[u64]) {
        let words = halves * Cts::BYTES / 8;
        assert!(after.len().is_multiple_of(words), "a part of a clear-to-send is written");
        for (i, (before, after)) in before.chunks(words).zip(after.chunks(words)).enumerate() {
            let (before, after) = (before[words - 1], after[words - 1]);
            let was_empty = before == Cts::empty_last_word(first + i);
            let (before, after) = (Cts::seq_of(before), Cts::seq_of(after));
            assert!(
                was_empty || after > before,
                "a slot goes from clear-to-send {before} back to {after}"
            );
        }
    }

    pub(super) fn handle_sent(&mut self, message: usize) {
        assert!(
            !std::mem::replace(&mut self.records[message].is_sent, true),
            "message {message} is sent twice"
        );
    }

    /// A queue pair reads `message` from memory.
    pub(super) fn handle_read(&self, message: usize) {
        let is_complete = self.records[message].send == State::Completed;
        assert!(!is_complete, "message {message} is read after its send has completed");
    }

    /// `message` is posted.
    pub(super) fn handle_posted(&self, message: usize) {
        let is_complete = self.records[message].receive == State::Completed;
        assert!(!is_complete, "message {message} is sent again and has arrived");
    }

    /// The receiver says that the message of `buffer` has not arrived.
    pub(super) fn handle_listed(&self, buffer: usize) {
        let is_complete = self.records[buffer].receive == State::Completed;
        assert!(!is_complete, "buffer {buffer} is listed as missing, and is complete");
    }

    pub(super) fn handle_send_completed(&mut self, message: usize, length: u32) {
        let record = &mut self.records[message];
        assert_eq!(length, record.message.arriving(), "the sender reports another length");
        record.send.end(State::Completed, "send", message);
        self.left -= 1;
        if self.receiver_lives && !self.may_lie && record.receive != State::Failed {
            record.check_contents(message, self.may_fail || self.may_repeat);
        }
    }

    pub(super) fn handle_receive_completed(&mut self, buffer: usize, length: u32) {
        let record = &mut self.records[buffer];
        assert!(record.is_sent, "buffer {buffer} has a message that was not sent");
        assert_eq!(length, record.message.arriving(), "buffer {buffer} reports another length");
        record.receive.end(State::Completed, "receive", buffer);
        self.left -= 1;
        record.check_contents(buffer, self.may_fail || self.may_repeat);
    }

    pub(super) fn handle_send_failed(&mut self, message: usize) {
        assert!(self.may_fail, "send {message} fails without a fault");
        self.records[message].send.end(State::Failed, "send", message);
    }

    pub(super) fn handle_receive_failed(&mut self, buffer: usize) {
        assert!(self.may_fail, "receive {buffer} fails without a fault");
        self.records[buffer].receive.end(State::Failed, "receive", buffer);
    }

    /// Whether all messages were delivered, and both ends know it.
    pub(super) fn is_all_delivered(&self) -> bool {
        self.left == 0
    }

    /// Whether a message is known to be delivered at one end, and has failed at the other.
    pub(super) fn has_disagreement(&self) -> bool {
        self.records
            .iter()
            .any(|record| (record.send, record.receive) == (State::Failed, State::Completed))
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
            assert!(
                *at == end || may_repeat && *at < end,
                "buffer {buffer} has a hole, or bytes that came twice"
            );
            end = end.max(at + length);
        }
        assert_eq!(end, self.message.arriving(), "buffer {buffer} is incomplete");
    }
}
