//! The record of one end of a connection, as that end writes it.

use super::file::{Words, add};
use super::layout::{RECEIVER, SENDER, record};
use super::process;
use super::table::{publish, put_text, unix_ns};
use super::timing::Timing;
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
    /// The rank that the peer's sends tell, as far as it knew.
    pub peer_rank: Option<u32>,
    /// The rank that the peer's launcher has told it.
    pub peer_label: Option<u32>,
}

/// The record of one end, which closes it when dropped. The counters are written by the thread that is inside of the communicator,
/// and by no other. They are read by other processes at any time, each by itself.
#[derive(Debug)]
pub struct ConnStats {
    pub(super) words: &'static Words,
    /// Calls of [`Self::handle_begun`] until it says that one is due.
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
            (record::DIRECTION, if opening.direction == Direction::Send { SENDER } else { RECEIVER }),
            (record::OPENED, unix_ns()),
            (record::PEER_PID, opening.peer_pid.into()),
            (record::PEER_RANK, plus_1(opening.peer_rank)),
            (record::PEER_LABEL, plus_1(opening.peer_label)),
            (record::REFUSED_AT, u64::MAX),
        ];
        for (at, value) in numbers {
            words[at].store(value, Ordering::Relaxed);
        }
        put_text(&words[record::DEVICE..][..record::DEVICE_WORDS], opening.device);
        put_text(&words[record::PEER_HOST..][..record::PEER_HOST_WORDS], opening.peer_host);
        publish(words);
        Self { words, credit: 1, timing: Timing::new(process::interval()), direction: opening.direction, number }
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
            let at = record::RAIL_NAMES + usize::from(number) % record::RAILS * record::RAIL_NAME_WORDS;
            put_text(&words[at..][..record::RAIL_NAME_WORDS], name);
        }
        words[record::RAIL_COUNT].store(count, Ordering::Relaxed);
        let numbers: Vec<u64> = queue_pairs.map(u64::from).collect();
        words[record::QP_COUNT].store(numbers.len() as u64, Ordering::Relaxed);
        for (word, pair) in words[record::QPS..][..record::QPS_WORDS].iter().zip(numbers.chunks(2)) {
            word.store(pair[0] | pair.get(1).copied().unwrap_or(0) << 32, Ordering::Relaxed);
        }
    }

    /// `isend` or `irecv` has accepted `count` messages. Returns whether [`Self::handle_due_send`] or
    /// [`Self::handle_due_receive`] is to be called.
    #[inline(always)]
    #[must_use]
    pub fn handle_begun(&mut self, count: usize) -> bool {
        add(&self.words[record::BEGUN], count as u64);
        self.credit = self.credit.wrapping_sub(1);
        self.credit == 0
    }

    /// `isend` has accepted request `request`, whose tag is this process's rank if NCCL calls.
    pub fn handle_due_send(&mut self, request: u32, tag: u32) {
        self.credit = self.timing.handle_send(self.words, request);
        if let Some(rank) = self.new_rank(record::OWN_RANK, tag) {
            process::handle_own_rank(rank);
        }
    }

    /// `irecv` has accepted request `request`, whose first tag is the peer's rank if NCCL calls. Returns that rank if it is new.
    pub fn handle_due_receive(&mut self, request: u32, tag: u32) -> Option<u32> {
        self.credit = self.timing.handle_receive(self.words, request);
        self.new_rank(record::PEER_RANK, tag)
    }

    /// The rank that `tag` is, if that is not what word `at` says.
    fn new_rank(&self, at: usize, tag: u32) -> Option<u32> {
        let rank = Some(tag).filter(|tag| *tag < 1 << 31)?;
        let word = u64::from(rank) + 1;
        (self.words[at].load(Ordering::Relaxed) != word).then(|| {
            self.words[at].store(word, Ordering::Relaxed);
            rank
        })
    }

    /// The id of the request that is timed at present.
    pub fn timed_request(&self) -> Option<u32> {
        self.timing.request()
    }

    /// Receiver: the clear-to-sends of the timed request are posted.
    pub fn handle_announced(&mut self) {
        self.timing.handle_announced(self.words);
    }

    /// The timed request is complete.
    pub fn handle_timed_done(&mut self) {
        if let Some(credit) = self.timing.handle_complete(self.words, self.direction == Direction::Send) {
            self.credit = credit;
        }
    }

    /// The timed request has ended elsewhere.
    pub fn forget_timed(&mut self) {
        self.timing.forget();
    }

    /// `isend` was refused: there is no clear-to-send, or no free request.
    #[inline(always)]
    pub fn handle_refused(&mut self) {
        let begun = self.words[record::BEGUN].load(Ordering::Relaxed);
        if self.words[record::REFUSED_AT].load(Ordering::Relaxed) != begun {
            self.handle_first_refusal(begun);
        }
    }

    #[cold]
    #[inline(never)]
    fn handle_first_refusal(&mut self, begun: u64) {
        self.words[record::REFUSED_AT].store(begun, Ordering::Relaxed);
        add(&self.words[record::WAITS], 1);
        self.timing.handle_refusal();
    }

    /// `test` has said that a message of so many bytes is complete.
    #[inline(always)]
    pub fn handle_done(&mut self, length: u32) {
        add(&self.words[record::DONE], 1);
        add(&self.words[record::BYTES], length.into());
    }

    /// `test` has said that a group of messages of these lengths is complete.
    #[inline(never)]
    pub fn handle_group_done(&mut self, lengths: &[u32]) {
        lengths.iter().for_each(|length| self.handle_done(*length));
    }

    /// `iflush` has begun a flush.
    pub fn handle_flush(&mut self) {
        add(&self.words[record::FLUSHES], 1);
    }

    /// `test` has said that a flush is complete.
    pub fn handle_flush_done(&mut self) {
        add(&self.words[record::FLUSHES_DONE], 1);
    }

    /// Rail number `rail`, one of several, has been given a stripe of so many bytes.
    pub fn handle_stripe(&mut self, rail: u8, bytes: u32) {
        add(&self.words[record::RAIL_BYTES + usize::from(rail) % record::RAILS], bytes.into());
    }

    /// The connection goes on over new queue pairs.
    pub fn handle_recovery(&mut self) {
        add(&self.words[record::RECOVERIES], 1);
    }

    /// A message of so many bytes is sent again.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::layout::{CLOSED, OPEN};
    use crate::stats::{histogram, stalls};

    fn end(direction: Direction) -> ConnStats {
        ConnStats::open(&Opening {
            direction,
            device: "mlx5_0",
            peer_host: "n-0412",
            peer_pid: 3021,
            peer_rank: None,
            peer_label: Some(118),
        })
    }

    fn word(end: &ConnStats, at: usize) -> u64 {
        end.words[at].load(Ordering::Relaxed)
    }

    #[test]
    fn messages_and_bytes_are_counted_and_the_first_message_tells_the_rank() {
        let mut end = end(Direction::Receive);
        assert!(end.handle_begun(1));
        assert_eq!((end.handle_due_receive(1, 7), word(&end, record::PEER_RANK)), (Some(7), 8));
        assert_eq!(end.handle_due_receive(1, 7), None, "it is known");
        assert!(!end.handle_begun(8));
        end.handle_done(100);
        end.handle_group_done(&[1, 2, 3]);
        assert_eq!([record::BEGUN, record::DONE, record::BYTES].map(|at| word(&end, at)), [9, 4, 106]);
        assert_eq!((word(&end, record::PEER_LABEL), word(&end, record::PEER_PID)), (119, 3021));
    }

    /// Samples of each stage.
    fn samples(end: &ConnStats) -> [u64; 3] {
        let count = |stage: usize| {
            let at = record::HISTOGRAMS + stage * histogram::WORDS;
            end.words[at..][..histogram::WORDS].iter().map(|word| word.load(Ordering::Relaxed)).map(halves).sum()
        };
        [0, 1, 2].map(count)
    }

    fn halves(word: u64) -> u64 {
        (word >> 32) + u64::from(word as u32)
    }

    /// An end of which one in `interval` messages is timed.
    fn timed(direction: Direction, interval: u32) -> ConnStats {
        ConnStats { timing: Timing::new(interval), ..end(direction) }
    }

    #[test]
    fn a_sender_times_one_message_in_64_and_the_pause_before_it() {
        let mut end = timed(Direction::Send, 64);
        let mut timed = Vec::new();
        for message in 0..200 {
            if message % 2 == 0 {
                end.handle_refused();
            }
            if end.handle_begun(1) {
                end.handle_due_send(message, 3);
            }
            if end.timed_request() == Some(message) {
                timed.push(message);
                end.handle_timed_done();
            }
        }
        assert_eq!(timed, [1, 65, 129, 193]);
        assert_eq!(samples(&end), [4; 3]);
    }

    #[test]
    fn a_receiver_times_one_message_in_64_until_the_next_irecv() {
        let mut end = timed(Direction::Receive, 64);
        let mut timed = Vec::new();
        for message in 0..200 {
            if end.handle_begun(1) {
                let _ = end.handle_due_receive(message, 3);
            }
            if end.timed_request() == Some(message) {
                timed.push(message);
                (0..2).for_each(|_| end.handle_announced());
                end.handle_timed_done();
            }
        }
        assert_eq!(timed, [0, 64, 128, 192]);
        assert_eq!(samples(&end), [4; 3]);
    }

    #[test]
    fn of_messages_that_overlap_one_is_timed_at_a_time_and_a_lost_one_does_not_end_that() {
        for direction in [Direction::Send, Direction::Receive] {
            let mut end = timed(direction, 4);
            let due = |end: &mut ConnStats, request| {
                if end.handle_begun(1) {
                    match direction {
                        Direction::Send => end.handle_due_send(request, 3),
                        Direction::Receive => drop(end.handle_due_receive(request, 3)),
                    }
                }
            };
            (0..20).for_each(|request| due(&mut end, request));
            assert_eq!(end.timed_request(), Some(u32::from(direction == Direction::Send)), "the first one still");
            end.forget_timed();
            (20..40).for_each(|request| due(&mut end, request));
            assert!(end.timed_request().is_some_and(|request| request >= 20));
        }
    }

    #[test]
    fn without_samples_no_message_is_timed() {
        let mut end = timed(Direction::Send, 0);
        assert!(end.handle_begun(1), "for the rank");
        end.handle_due_send(0, 3);
        assert!((0..1000).all(|_| !end.handle_begun(1)) && end.timed_request().is_none());
    }

    /// Counters are written by this thread, and looked at once a second of a made-up time.
    #[test]
    fn an_end_that_waits_and_does_not_move_for_a_second_has_stalled() {
        const SECOND: u64 = 1_000_000_000;
        let mut end = end(Direction::Receive);
        let mut seconds = 100;
        let mut look = |end: &ConnStats| {
            seconds += 1;
            assert!(stalls::look_at(end.words, seconds * SECOND));
            [record::STALLS, record::STALL, record::LONGEST_STALL].map(|at| word(end, at))
        };
        assert_eq!([look(&end), look(&end)], [[0; 3]; 2], "nothing is outstanding");
        let _ = end.handle_begun(2);
        assert_eq!(look(&end), [0; 3], "it has moved");
        assert_eq!([look(&end), look(&end)], [[1, SECOND, SECOND], [1, 2 * SECOND, 2 * SECOND]]);
        end.handle_done(8);
        assert_eq!(look(&end), [1, 0, 2 * SECOND], "it has moved, and waits for the other one");
        assert_eq!(look(&end), [2, SECOND, 2 * SECOND]);
        end.handle_done(8);
        assert_eq!([look(&end), look(&end)], [[2, 0, 2 * SECOND]; 2], "nothing is outstanding");
        let words = end.words;
        drop(end);
        assert!(!stalls::look_at(words, 200 * SECOND));
    }

    #[test]
    fn a_sender_without_a_clear_to_send_stalls_too() {
        let mut end = end(Direction::Send);
        end.handle_refused();
        assert!((1..=2).all(|second| stalls::look_at(end.words, second)));
        assert_eq!(word(&end, record::STALLS), 1);
    }

    #[test]
    fn a_message_that_is_refused_many_times_counts_once() {
        let mut end = end(Direction::Send);
        for waits in [1, 2] {
            (0..10).for_each(|_| end.handle_refused());
            assert_eq!(word(&end, record::WAITS), waits);
            assert_eq!(word(&end, record::REFUSED_AT), word(&end, record::BEGUN), "it waits");
            let _ = end.handle_begun(1);
        }
        assert_ne!(word(&end, record::REFUSED_AT), word(&end, record::BEGUN));
    }

    #[test]
    fn a_negative_tag_is_no_rank() {
        let mut end = end(Direction::Receive);
        assert_eq!((end.handle_due_receive(0, -1i32 as u32), word(&end, record::PEER_RANK)), (None, 0));
    }

    #[test]
    fn queue_pair_numbers_take_half_a_word_each() {
        let end = end(Direction::Send);
        end.set_queue_pairs([(0, "mlx5_0"), (2, "mlx5_2")].into_iter(), [5, 6, 7].into_iter());
        let seen = [record::RAIL_COUNT, record::QP_COUNT, record::QPS, record::QPS + 1].map(|at| word(&end, at));
        assert_eq!(seen, [2, 3, 5 | 6 << 32, 7]);
        assert_eq!(word(&end, record::RAIL_NAMES + 2 * record::RAIL_NAME_WORDS), u64::from_ne_bytes(*b"mlx5_2\0\0"));
    }

    #[test]
    fn a_closed_end_stays_readable() {
        let open = end(Direction::Send);
        let words = open.words;
        assert_eq!(words[record::STATE].load(Ordering::Relaxed) & 0xff, OPEN);
        drop(open);
        assert_eq!(words[record::STATE].load(Ordering::Relaxed) & 0xff, CLOSED);
        assert_ne!(words[record::CLOSED].load(Ordering::Relaxed), 0);
    }
}
