//! The record of one end of a connection, as that end writes it.

use super::file::{Words, add};
use super::layout::{RECEIVER, SENDER, record};
use super::process;
use super::table::{publish, put_text, unix_ns};
use super::timing::{Completed, Timing};
use std::sync::atomic::Ordering;

/// Which end of a connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The sender.
    Send,
    /// The receiver.
    Receive,
}

/// What is known of an end when it is set up.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'a> {
    /// Which end it is.
    pub direction: Direction,
    /// Name of its device.
    pub device: &'a str,
    /// Host name of the peer.
    pub peer_host: &'a str,
    /// Process id of the peer.
    pub peer_pid: u32,
    /// The rank in the tags of the peer's sends, if it knew it.
    pub peer_rank: Option<u32>,
    /// The rank from the peer's launcher.
    pub peer_label: Option<u32>,
    /// A number of the connection that both ends share.
    pub connection: u64,
}

/// The record of one end, which closes it when dropped. Only the thread inside the communicator
/// writes the counters. Other processes read each of them at any time.
#[derive(Debug)]
pub struct ConnStats {
    pub(super) words: &'static Words,
    /// Calls of [`Self::handle_begun`] until it returns true.
    credit: u32,
    timing: Timing,
    direction: Direction,
    number: usize,
}

impl ConnStats {
    /// A record for a new end.
    pub fn open(opening: &Opening<'_>) -> Self {
        let (number, words) = process::take_record();
        let plus_1 = |rank: Option<u32>| rank.map_or(0, |rank| u64::from(rank) + 1);
        let numbers = [
            (
                record::DIRECTION,
                if opening.direction == Direction::Send { SENDER } else { RECEIVER },
            ),
            (record::OPENED, unix_ns()),
            (record::PEER_PID, opening.peer_pid.into()),
            (record::PEER_RANK, plus_1(opening.peer_rank)),
            (record::PEER_LABEL, plus_1(opening.peer_label)),
            (record::REFUSED_AT, u64::MAX),
            (record::CONNECTION, opening.connection),
        ];
        for (at, value) in numbers {
            words[at].store(value, Ordering::Relaxed);
        }
        put_text(&words[record::DEVICE..][..record::DEVICE_WORDS], opening.device);
        put_text(&words[record::PEER_HOST..][..record::PEER_HOST_WORDS], opening.peer_host);
        publish(words);
        Self {
            words,
            credit: 1,
            timing: Timing::new(process::interval()),
            direction: opening.direction,
            number,
        }
    }

    /// One in `interval` messages is timed.
    #[cfg(test)]
    pub(super) fn timed_every(mut self, interval: u32) -> Self {
        self.timing = Timing::new(interval);
        self
    }

    /// The rails and the queue pair numbers in use, which a recovery changes.
    pub fn set_queue_pairs<'a>(
        &self,
        rails: impl Iterator<Item = (u8, &'a str)>,
        queue_pairs: impl Iterator<Item = u32>,
    ) {
        let words = self.words;
        let mut count = 0;
        for (number, name) in rails {
            count += 1;
            let at =
                record::RAIL_NAMES + usize::from(number) % record::RAILS * record::RAIL_NAME_WORDS;
            put_text(&words[at..][..record::RAIL_NAME_WORDS], name);
        }
        words[record::RAIL_COUNT].store(count, Ordering::Relaxed);
        let numbers: Vec<u64> = queue_pairs.map(u64::from).collect();
        words[record::QP_COUNT].store(numbers.len() as u64, Ordering::Relaxed);
        for (word, pair) in words[record::QPS..][..record::QPS_WORDS].iter().zip(numbers.chunks(2))
        {
            word.store(pair[0] | pair.get(1).copied().unwrap_or(0) << 32, Ordering::Relaxed);
        }
    }

    /// Whether the next call of [`Self::handle_begun`] returns true.
    #[inline(always)]
    pub fn is_due_next(&self) -> bool {
        self.credit == 1
    }

    /// `isend` or `irecv` has accepted `count` messages. Returns whether to call
    /// [`Self::handle_due_send`] or [`Self::handle_due_receive`].
    #[inline(always)]
    #[must_use]
    pub fn handle_begun(&mut self, count: usize) -> bool {
        add(&self.words[record::BEGUN], count as u64);
        self.credit = self.credit.wrapping_sub(1);
        self.credit == 0
    }

    /// `isend` has accepted request `request`, whose tag is this process's rank; `None`: not known.
    pub fn handle_due_send(&mut self, request: u32, tag: Option<u32>) {
        let number = self.words[record::BEGUN].load(Ordering::Relaxed).wrapping_sub(1);
        self.credit = self.timing.handle_send(self.words, request, number);
        if let Some(rank) = tag.and_then(|tag| self.new_rank(record::OWN_RANK, tag)) {
            process::handle_own_rank(rank);
        }
    }

    /// `irecv` has accepted request `request` of `count` messages, whose first tag is the peer's
    /// rank; `None`: not known. Returns the rank if it is new.
    pub fn handle_due_receive(&mut self, request: u32, count: u8, tag: Option<u32>) -> Option<u32> {
        let number = self.words[record::BEGUN].load(Ordering::Relaxed).wrapping_sub(count.into());
        self.credit = self.timing.handle_receive(self.words, request, number, count.into());
        self.new_rank(record::PEER_RANK, tag?)
    }

    /// The rank in `tag`, if it differs from word `at`.
    fn new_rank(&self, at: usize, tag: u32) -> Option<u32> {
        let rank = Some(tag).filter(|tag| *tag < 1 << 31)?;
        let word = u64::from(rank) + 1;
        (self.words[at].load(Ordering::Relaxed) != word).then(|| {
            self.words[at].store(word, Ordering::Relaxed);
            rank
        })
    }

    /// The id of the request that is being timed.
    pub fn timed_request(&self) -> Option<u32> {
        self.timing.request()
    }

    /// Sender: the number of the timed message in the order of the receives, lower 32 bits.
    pub fn set_timed_place(&mut self, place: u32) {
        self.timing.set_place(place);
    }

    /// The timed request belongs to NCCL's operation `call`; 0: not known.
    pub fn set_timed_operation(&mut self, call: u64) {
        self.timing.set_operation(call);
    }

    /// Receiver: the clear-to-sends of the timed request are posted.
    pub fn handle_announced(&mut self) {
        self.timing.handle_announced(self.words);
    }

    /// The timed request is complete.
    pub fn handle_timed_done(&mut self, completed: Completed) {
        if let Some(credit) =
            self.timing.handle_complete(self.words, completed, self.direction == Direction::Send)
        {
            self.credit = credit;
        }
    }

    /// Stops timing the present request.
    pub fn forget_timed(&mut self) {
        self.timing.forget();
    }

    /// `isend` returned no request: there is no clear-to-send, or no free request.
    #[inline(always)]
    pub fn handle_refused(&mut self) {
        if self.count_refusal() {
            self.timing.handle_refusal();
        }
    }

    /// As [`Self::handle_refused`]. Does nothing and returns false if the next message is to be
    /// timed.
    #[inline(always)]
    pub fn handle_refused_untimed(&mut self) -> bool {
        let is_untimed = !self.timing.is_next();
        if is_untimed {
            self.count_refusal();
        }
        is_untimed
    }

    /// Returns whether the next message has not been refused before.
    #[inline(always)]
    fn count_refusal(&self) -> bool {
        let begun = self.words[record::BEGUN].load(Ordering::Relaxed);
        let is_first = self.words[record::REFUSED_AT].load(Ordering::Relaxed) != begun;
        if is_first {
            self.words[record::REFUSED_AT].store(begun, Ordering::Relaxed);
            add(&self.words[record::WAITS], 1);
        }
        is_first
    }

    /// `test` has reported a message of this many bytes complete.
    #[inline(always)]
    pub fn handle_done(&mut self, length: u32) {
        add(&self.words[record::DONE], 1);
        add(&self.words[record::BYTES], length.into());
    }

    /// Messages that `isend` or `irecv` has accepted and that are not reported complete.
    #[inline(always)]
    pub fn outstanding(&self) -> usize {
        let [begun, done] =
            [record::BEGUN, record::DONE].map(|at| self.words[at].load(Ordering::Relaxed));
        begun.wrapping_sub(done) as usize
    }

    /// `test` has reported a group of messages of these lengths complete.
    #[inline(never)]
    pub fn handle_group_done(&mut self, lengths: &[u32]) {
        lengths.iter().for_each(|length| self.handle_done(*length));
    }

    /// `iflush` has begun a flush.
    pub fn handle_flush(&mut self) {
        add(&self.words[record::FLUSHES], 1);
    }

    /// `test` has reported a flush complete.
    pub fn handle_flush_done(&mut self) {
        add(&self.words[record::FLUSHES_DONE], 1);
    }

    /// A stripe of this many bytes was posted on rail `rail`, one of several.
    pub fn handle_stripe(&mut self, rail: u8, bytes: u32) {
        add(&self.words[record::RAIL_BYTES + usize::from(rail) % record::RAILS], bytes.into());
    }

    /// A stripe of this many bytes was posted on lane `qp`.
    pub fn handle_lane_stripe(&mut self, qp: u8, bytes: u32) {
        add(&self.words[record::LANE_BYTES + usize::from(qp) % record::LANES], bytes.into());
    }

    /// Lanes have moved to other paths this many times in all.
    pub fn set_moves(&mut self, count: u64) {
        self.words[record::MOVES].store(count, Ordering::Relaxed);
    }

    /// The connection resumes over new queue pairs.
    pub fn handle_recovery(&mut self) {
        add(&self.words[record::RECOVERIES], 1);
    }

    /// A message of this many bytes is sent again.
    pub fn handle_resent(&mut self, bytes: u32) {
        add(&self.words[record::RESENT], 1);
        add(&self.words[record::RESENT_BYTES], bytes.into());
    }
}

impl Drop for ConnStats {
    fn drop(&mut self) {
        process::give_record_back(self.number, self.words);
    }
}
