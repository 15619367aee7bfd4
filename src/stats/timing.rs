//! The times of one message in so many: how long it was in each stage.
//!
//! ```text
//! sender     isend of the message before ──gpu──► first isend ──cts──► accepted ──wire──► acknowledged
//! receiver   irecv ──announce──► clear-to-send posted ──data──► arrived ──consume──► next irecv
//! ```
//!
//! One message of an end is timed at a time.

use super::clock::Clock;
use super::file::Words;
use super::histogram::{self, bucket_of};
use super::layout::{RECORD_WORDS, record};
use std::sync::atomic::Ordering;

const _: () = assert!(record::HISTOGRAMS + record::STAGES * histogram::WORDS <= RECORD_WORDS);

/// Which message is timed, and how far it is. Times are in ticks of the clock.
#[derive(Debug, Clone, Copy)]
enum State {
    /// None.
    Idle,
    /// Sender: the message before has been accepted; when, and when the message was refused first.
    Next { since: u64, refused: Option<u64> },
    /// The request with this id, since it was accepted. Receiver: when its clear-to-send was posted.
    Begun { request: u32, since: u64, announced: Option<u64> },
    /// Receiver: the message has arrived.
    Arrived { since: u64 },
}

/// The timing of one end.
#[derive(Debug)]
pub(super) struct Timing {
    clock: Clock,
    /// One in so many messages is timed; 0: none is.
    interval: u32,
    state: State,
}

impl Timing {
    /// No message is timed yet.
    pub(super) fn new(interval: u32) -> Self {
        Self { clock: Clock::get(), interval, state: State::Idle }
    }

    /// The request that is timed at present.
    pub(super) fn request(&self) -> Option<u32> {
        match self.state {
            State::Begun { request, .. } => Some(request),
            _ => None,
        }
    }

    /// Sender: request `request` has been accepted, which was due. Returns after how many more messages the next one is due.
    pub(super) fn handle_send(&mut self, words: &Words, request: u32) -> u32 {
        if self.interval == 0 {
            return 0;
        }
        let now = self.clock.now();
        match self.state {
            State::Next { since, refused } => {
                let first_try = refused.unwrap_or(now);
                self.count(words, record::GPU, since, first_try);
                self.count(words, record::CTS, first_try, now);
                self.state = State::Begun { request, since: now, announced: None };
                (self.interval - 1).max(1)
            }
            State::Idle => {
                self.state = State::Next { since: now, refused: None };
                1
            }
            _ => self.interval,
        }
    }

    /// Sender: a message is refused for the first time.
    pub(super) fn handle_refusal(&mut self) {
        if let State::Next { refused: refused @ None, .. } = &mut self.state {
            *refused = Some(self.clock.now());
        }
    }

    /// Receiver: request `request` has been accepted, which was due. Returns as [`Self::handle_send`].
    pub(super) fn handle_receive(&mut self, words: &Words, request: u32) -> u32 {
        if self.interval == 0 {
            return 0;
        }
        let now = self.clock.now();
        match self.state {
            State::Arrived { since } => {
                self.count(words, record::CONSUME, since, now);
                self.state = State::Idle;
                (self.interval - 1).max(1)
            }
            State::Idle => {
                self.state = State::Begun { request, since: now, announced: None };
                self.interval
            }
            _ => self.interval,
        }
    }

    /// Receiver: the clear-to-sends of the timed request are posted.
    pub(super) fn handle_announced(&mut self, words: &Words) {
        if let State::Begun { since, announced: announced @ None, .. } = &mut self.state {
            let now = self.clock.now();
            *announced = Some(now);
            let since = *since;
            self.count(words, record::ANNOUNCE, since, now);
        }
    }

    /// The timed request is complete. Returns after how many more messages the next one is due, if that changes.
    pub(super) fn handle_complete(&mut self, words: &Words, is_sender: bool) -> Option<u32> {
        let State::Begun { since, announced, .. } = self.state else { return None };
        let now = self.clock.now();
        if is_sender {
            self.count(words, record::WIRE, since, now);
            self.state = State::Idle;
            return None;
        }
        self.count(words, record::DATA, announced.unwrap_or(since), now);
        self.state = State::Arrived { since: now };
        Some(1)
    }

    /// What is timed is not timed to its end.
    pub(super) fn forget(&mut self) {
        self.state = State::Idle;
    }

    fn count(&self, words: &Words, stage: usize, earlier: u64, later: u64) {
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
    }
}
