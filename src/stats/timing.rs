//! The times of sampled messages: how long each was in each stage.
//!
//! ```text
//! sender     isend of the message before ──gpu──► first isend ──cts──► accepted ──wire──► acknowledged
//! receiver   irecv ──announce──► clear-to-send posted ──data──► arrived ──consume──► next irecv
//! ```
//!
//! An end times one message at a time: that of a call whose number is 1 greater than a multiple of
//! the interval. So both ends time the same messages, unless the order of sends differs from that
//! of receives. The record keeps the last timed messages with their numbers at the receiver, for
//! `ferrite trace`.

use super::clock::Clock;
use super::file::Words;
use super::histogram::{self, bucket_of};
use super::layout::{RECORD_WORDS, record, timed};
use std::sync::atomic::{AtomicU64, Ordering, fence};

const _: () = assert!(record::HISTOGRAMS + record::STAGES * histogram::WORDS <= record::TIMED);
const _: () = assert!(record::TIMED + record::TIMED_MESSAGES * timed::WORDS <= RECORD_WORDS);

/// Which message is timed, and its stage. Times are in ticks of the clock.
#[derive(Debug, Clone, Copy)]
enum State {
    /// None.
    Idle,
    /// Sender: when the previous message was accepted, and when the message was first refused.
    Next { since: u64, refused: Option<u64> },
    /// The request with this id, and when it was accepted. Receiver: when its clear-to-send was
    /// posted.
    Begun { request: u32, since: u64, announced: Option<u64> },
    /// Receiver: the message has arrived.
    Arrived { since: u64 },
}

/// The timing of one end.
#[derive(Debug)]
pub(super) struct Timing {
    clock: Clock,
    /// One in this many messages is timed; 0: none.
    interval: u32,
    state: State,
    /// The data to keep of the timed message.
    message: Message,
    /// How many messages have been kept.
    kept: usize,
}

/// The data that is kept of a message.
#[derive(Debug, Clone, Copy, Default)]
struct Message {
    /// Its number; receiver: that of the first of the `irecv`.
    number: u64,
    /// The time in each stage, in nanoseconds.
    stages: [u64; record::STAGES],
    /// As [`record::OPERATION`].
    operation: u64,
}

/// The flow's data of a complete request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    /// Number of its messages.
    pub messages: u8,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// The number nearest to `number` whose lower 32 bits are `low`.
fn nearest(number: u64, low: u32) -> u64 {
    number.wrapping_add_signed(i64::from(low.wrapping_sub(number as u32) as i32))
}

impl Timing {
    /// No message is timed yet.
    pub(super) fn new(interval: u32) -> Self {
        Self {
            clock: Clock::get(),
            interval,
            state: State::Idle,
            message: Message::default(),
            kept: 0,
        }
    }

    /// The request that is being timed.
    pub(super) fn request(&self) -> Option<u32> {
        match self.state {
            State::Begun { request, .. } => Some(request),
            _ => None,
        }
    }

    /// Sender: request `request`, which was due, has been accepted: message number `number`.
    /// Returns after how many more messages the next one is due.
    pub(super) fn handle_send(&mut self, words: &Words, request: u32, number: u64) -> u32 {
        if self.interval == 0 {
            return 0;
        }
        let now = self.clock.now();
        match self.state {
            State::Next { since, refused } => {
                let first_try = refused.unwrap_or(now);
                let gpu = self.count(words, record::GPU, since, first_try);
                let cts = self.count(words, record::CTS, first_try, now);
                self.message = Message { number, stages: [gpu, cts, 0], operation: 0 };
                self.state = State::Begun { request, since: now, announced: None };
            }
            State::Idle if number.is_multiple_of(self.interval.into()) => {
                self.state = State::Next { since: now, refused: None };
                return 1;
            }
            _ => {}
        }
        let interval = u64::from(self.interval);
        (interval - number % interval) as u32
    }

    /// Sender: the timed message is number `place` in the order of the receives; these are the
    /// lower 32 bits. With several tags the sender may have sent others before it.
    pub(super) fn set_place(&mut self, place: u32) {
        self.message.number = nearest(self.message.number, place);
    }

    /// The timed message belongs to this operation.
    pub(super) fn set_operation(&mut self, operation: u64) {
        self.message.operation = operation;
    }

    /// Sender: whether the next message is to be timed.
    #[inline(always)]
    pub(super) fn is_next(&self) -> bool {
        matches!(self.state, State::Next { .. })
    }

    /// Sender: a message is refused for the first time.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_refusal(&mut self) {
        if let State::Next { refused: refused @ None, .. } = &mut self.state {
            *refused = Some(self.clock.now());
        }
    }

    /// Receiver: request `request`, which was due, has been accepted: `count` messages, the first
    /// with number `number`. Returns after how many more requests of as many messages the next one
    /// is due.
    pub(super) fn handle_receive(
        &mut self,
        words: &Words,
        request: u32,
        number: u64,
        count: u64,
    ) -> u32 {
        if self.interval == 0 {
            return 0;
        }
        let now = self.clock.now();
        if let State::Arrived { since } = self.state {
            let ns = self.count(words, record::CONSUME, since, now);
            self.kept_words(words, self.kept.wrapping_sub(1))[timed::STAGES + record::CONSUME]
                .store(ns, Ordering::Relaxed);
            self.state = State::Idle;
        }
        let next = self.next_timed(number);
        let (is_timed, next) = if next < number + count {
            (true, self.next_timed(number + count))
        } else {
            (false, next)
        };
        if is_timed && matches!(self.state, State::Idle) {
            self.message = Message { number, ..Message::default() };
            self.state = State::Begun { request, since: now, announced: None };
        }
        ((next - (number + count)) / count.max(1)) as u32 + 1
    }

    /// The first number, from `number` on, of a message to time.
    fn next_timed(&self, number: u64) -> u64 {
        let interval = u64::from(self.interval);
        let offset = 1 % interval;
        (number + interval - 1 - offset) / interval * interval + offset
    }

    /// Receiver: the clear-to-sends of the timed request are posted.
    pub(super) fn handle_announced(&mut self, words: &Words) {
        if let State::Begun { since, announced: announced @ None, .. } = &mut self.state {
            let now = self.clock.now();
            *announced = Some(now);
            let since = *since;
            self.message.stages[record::ANNOUNCE] = self.count(words, record::ANNOUNCE, since, now);
        }
    }

    /// The timed request is complete. Returns after how many more messages the next one is due, if
    /// that changes.
    pub(super) fn handle_complete(
        &mut self,
        words: &Words,
        completed: Completed,
        is_sender: bool,
    ) -> Option<u32> {
        let State::Begun { since, announced, .. } = self.state else { return None };
        let (now, at) = self.clock.now_and_monotonic();
        if is_sender {
            self.message.stages[record::WIRE] = self.count(words, record::WIRE, since, now);
            self.keep(words, completed, at);
            self.state = State::Idle;
            return None;
        }
        self.message.stages[record::DATA] =
            self.count(words, record::DATA, announced.unwrap_or(since), now);
        self.keep(words, completed, at);
        self.state = State::Arrived { since: now };
        Some(1)
    }

    /// Keeps the message in the record, in place of the oldest. Readers recognise half-written
    /// words: the last one is written first.
    fn keep(&mut self, words: &Words, completed: Completed, at: u64) {
        let Message { number, stages, operation } = self.message;
        let place = self.kept_words(words, self.kept);
        place[timed::MESSAGE_AGAIN].store(number + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        place[timed::AT].store(at, Ordering::Relaxed);
        for (word, ns) in place[timed::STAGES..].iter().zip(stages) {
            word.store(ns, Ordering::Relaxed);
        }
        let bytes = completed.bytes | u64::from(completed.messages) << 56;
        place[timed::BYTES].store(bytes, Ordering::Relaxed);
        place[timed::OPERATION].store(operation, Ordering::Relaxed);
        place[timed::MESSAGE].store(number + 1, Ordering::Release);
        self.kept = self.kept.wrapping_add(1);
    }

    /// The words for the message kept as number `kept`.
    fn kept_words<'a>(&self, words: &'a Words, kept: usize) -> &'a [AtomicU64] {
        &words[record::TIMED + kept % record::TIMED_MESSAGES * timed::WORDS..][..timed::WORDS]
    }

    /// Stops timing the present message.
    pub(super) fn forget(&mut self) {
        self.state = State::Idle;
    }

    /// Adds the time from `earlier` to `later` to those of a stage. Returns it in nanoseconds.
    fn count(&self, words: &Words, stage: usize, earlier: u64, later: u64) -> u64 {
        let ns = self.clock.ns_between(earlier, later);
        let bucket = bucket_of(ns);
        let word = &words[record::HISTOGRAMS + stage * histogram::WORDS + bucket / 2];
        let (value, shift) = (word.load(Ordering::Relaxed), 32 * (bucket as u32 % 2));
        if (value >> shift) as u32 != u32::MAX {
            word.store(value + (1 << shift), Ordering::Relaxed);
        }
        let longest = &words[record::LONGEST + stage];
        if ns > longest.load(Ordering::Relaxed) {
            longest.store(ns, Ordering::Relaxed);
        }
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_known_by_its_lower_half_if_it_is_near() {
        let of = |number, near: u64| nearest(number, near as u32) == near;
        assert!(of(5, 5) && of(5, 3) && of(5, 400));
        let wrap = 1 << 32;
        assert!(of(wrap + 1, wrap - 1) && of(wrap - 1, wrap + 7) && of(9 * wrap, 9 * wrap - 512));
    }
}
