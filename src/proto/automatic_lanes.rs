//! When a connection takes lanes by itself, and when it gives them up again (`FERRITE_LANES=auto`, docs/paths.md).
//!
//! ```text
//!              has sent enough, in large messages               all lanes have carried as much
//!  One ───────────────────────────────────────────► Lanes ─────────────────────────────────────► Trial, with one
//!   ▲                                                 ▲                                           │        │
//!   │ has sent sixteen times as much                  └───────── for good, if that is slower ─────┘        │
//!   └────────────────────────────────────────────────────────────────────────────── if it is not ──────────┘
//! ```
//!
//! Lanes cost queue pairs and work requests. A connection that carries little does without. Where a fabric has one path, or spreads packets
//! itself, no lane is faster than another; but that is so as well where a connection was lucky with its paths. So it tries what one queue
//! pair does, and compares.

use super::MAX_QPS;
use super::control::Time;

/// Messages of a connection that takes lanes are of so many bytes on average, or more.
const LARGE: u64 = 64 << 10;
/// Measurements of speed before there is a decision; the median counts, so that a few pauses of the job do not.
const MEASUREMENTS: usize = 16;
/// All measurements together take this many times what a connection sends before it takes lanes.
const TIMES_AS_MUCH: u64 = 4;
/// One queue pair on each rail is slower if it reaches less than 7/8 of the speed with lanes.
const SLOWER: (u64, u64) = (7, 8);
/// Lanes have carried as much as each other if each has 15/16 of what another one has.
const ALIKE: (u64, u64) = (15, 16);
/// After lanes have been of no use, it takes this many times as much until they are tried again.
const LONGER: u64 = 16;

/// What a sender has done.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// When that is.
    pub now: Time,
    /// Messages, since the connection began.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rails that it uses now.
    pub rails: u8,
    /// Queue pairs on each rail now.
    pub per_rail: u8,
    /// Bytes that each queue pair has carried while there were lanes, by index.
    pub by_qp: [u64; MAX_QPS],
}

/// What is to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Queue pairs on each rail.
    pub per_rail: u8,
    /// For the log: what has been seen.
    pub why: &'static str,
}

/// The lanes of a connection that has as many as it can use.
#[derive(Debug)]
pub struct AutomaticLanes {
    /// Lanes on each rail, if there are lanes.
    most: u8,
    /// Bytes before a connection takes lanes for the first time.
    after: u64,
    /// The same for the next time.
    wait: u64,
    /// Nothing is to be decided before so many bytes have been sent.
    next: u64,
    /// There is a wish, and there are no new queue pairs since.
    is_asked: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// One queue pair on each rail; what had been sent when it began.
    One {
        messages: u64,
        bytes: u64,
    },
    Lanes(Measuring),
    /// One queue pair again; the speed with lanes, in bytes a second, and on how many rails.
    Trial(u64, u8, Measuring),
    /// Lanes are of use.
    Settled,
}

/// How fast a sender is.
#[derive(Debug, Default)]
struct Measuring {
    /// What it had done when this began, and at the latest measurement.
    first: Option<Sent>,
    latest: Option<Sent>,
    /// Bytes a second.
    speeds: [u64; MEASUREMENTS],
    count: usize,
}

impl AutomaticLanes {
    /// A connection begins with one queue pair on each rail, and takes up to `most` after so many bytes.
    pub fn new(most: u8, after: u64) -> Self {
        Self { most, after, wait: after, next: after, is_asked: false, stage: Stage::One { messages: 0, bytes: 0 } }
    }

    /// Whether there is something to be decided after so many bytes: then [`Self::look`] is to be called.
    pub fn is_due(&self, bytes: u64) -> bool {
        bytes >= self.next && !self.is_asked
    }

    /// There are new queue pairs, by a wish or after a fault. If there was a wish, they are what has come of it.
    pub fn handle_new_queue_pairs(&mut self) {
        self.is_asked = false;
    }

    /// Decides. After a wish, nothing more is decided until there are new queue pairs; as many as is wished, or fewer.
    pub fn look(&mut self, sent: &Sent) -> Option<Wish> {
        if !self.is_due(sent.bytes) {
            return None;
        }
        self.next = sent.bytes.saturating_add((self.after * TIMES_AS_MUCH / MEASUREMENTS as u64).max(1));
        let wish = self.decide(sent);
        self.is_asked = wish.is_some();
        wish
    }

    /// For a page.
    #[cfg(test)]
    pub(super) fn state_name(&self) -> &'static str {
        match self.stage {
            Stage::One { .. } => "One",
            Stage::Lanes(_) => "Lanes",
            Stage::Trial(..) => "Trial",
            Stage::Settled => "Settled",
        }
    }

    fn decide(&mut self, sent: &Sent) -> Option<Wish> {
        let has_lanes = sent.per_rail > 1;
        match &mut self.stage {
            // Those of an earlier wish.
            Stage::One { .. } if has_lanes => self.stage = Stage::Lanes(Measuring::default()),
            Stage::One { messages, bytes } => {
                let (messages, bytes) = (sent.messages.saturating_sub(*messages), sent.bytes.saturating_sub(*bytes));
                if bytes / messages.max(1) >= LARGE {
                    return self.take_lanes("large messages");
                }
                self.wait_with_one(sent);
            }
            // The peer has one queue pair, or a device has no more.
            Stage::Lanes(_) if !has_lanes => self.handle_no_use(sent),
            Stage::Lanes(measuring) => {
                let (first, speed) = measuring.add(sent)?;
                if !are_alike(&first, sent) {
                    self.stage = Stage::Lanes(Measuring::default());
                    return None;
                }
                self.stage = Stage::Trial(speed, sent.rails, Measuring::default());
                return Some(Wish { per_rail: 1, why: "all lanes have carried as much" });
            }
            Stage::Trial(..) if has_lanes => self.stage = Stage::Lanes(Measuring::default()),
            // There is nothing to compare with.
            Stage::Trial(_, rails, _) if *rails != sent.rails => self.wait_with_one(sent),
            Stage::Trial(with_lanes, _, measuring) => {
                let (with_lanes, (_, speed)) = (*with_lanes, measuring.add(sent)?);
                if u128::from(speed) * u128::from(SLOWER.1) < u128::from(with_lanes) * u128::from(SLOWER.0) {
                    self.stage = Stage::Settled;
                    return Some(Wish { per_rail: self.most, why: "it is slower with one queue pair" });
                }
                self.handle_no_use(sent);
            }
            Stage::Settled if has_lanes => {}
            Stage::Settled => self.handle_no_use(sent),
        }
        None
    }

    fn take_lanes(&mut self, why: &'static str) -> Option<Wish> {
        self.stage = Stage::Lanes(Measuring::default());
        Some(Wish { per_rail: self.most, why })
    }

    /// Lanes are of no use now.
    fn handle_no_use(&mut self, sent: &Sent) {
        self.wait = self.wait.saturating_mul(LONGER);
        self.wait_with_one(sent);
    }

    fn wait_with_one(&mut self, sent: &Sent) {
        self.stage = Stage::One { messages: sent.messages, bytes: sent.bytes };
        self.next = sent.bytes.saturating_add(self.wait);
    }
}

impl Measuring {
    /// A part has been sent. After all of them: what had been done when it began, and the median of the speeds.
    fn add(&mut self, sent: &Sent) -> Option<(Sent, u64)> {
        let is_other = |first: &Sent| (first.rails, first.per_rail) != (sent.rails, sent.per_rail);
        if self.first.as_ref().is_some_and(is_other) {
            *self = Self::default();
        }
        let first = *self.first.get_or_insert(*sent);
        if let Some(latest) = self.latest.replace(*sent) {
            let us = (sent.now.saturating_sub(latest.now).as_micros() as u64).max(1);
            let bytes = u128::from(sent.bytes.saturating_sub(latest.bytes));
            self.speeds[self.count] = (bytes * 1_000_000 / u128::from(us)) as u64;
            self.count += 1;
        }
        (self.count == MEASUREMENTS).then(|| {
            self.speeds.sort_unstable();
            (first, self.speeds[MEASUREMENTS / 2])
        })
    }
}

/// Whether all lanes of each rail have carried as much since `first`.
fn are_alike(first: &Sent, now: &Sent) -> bool {
    let (rails, count) = (now.rails, now.rails * now.per_rail);
    let carried = |qp: u8| {
        let qp = usize::from(qp) % MAX_QPS;
        now.by_qp[qp].saturating_sub(first.by_qp[qp])
    };
    (0..rails).all(|rail| {
        let lanes = || (rail..count).step_by(rails.into()).map(carried);
        let (least, most) = (lanes().min().unwrap_or(0), lanes().max().unwrap_or(0));
        u128::from(least) * u128::from(ALIKE.1) >= u128::from(most) * u128::from(ALIKE.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const AFTER: u64 = 16 << 30;

    /// A connection, and how fast it is.
    struct Conn {
        lanes: AutomaticLanes,
        sent: Sent,
        message: u64,
        /// Bytes a second with one queue pair and with lanes.
        speeds: [u64; 2],
        /// How the lanes share what is sent, in parts of a thousand.
        shares: [u64; 8],
        /// The peer takes no more than this.
        most: u8,
        /// So many bytes are sent before a wish has come true.
        delay: u64,
        /// When that is, and with how many queue pairs.
        wished: Option<(u64, u8)>,
    }

    impl Conn {
        fn new() -> Self {
            let sent = Sent { now: Time::ZERO, messages: 0, bytes: 0, rails: 1, per_rail: 1, by_qp: [0; MAX_QPS] };
            let lanes = AutomaticLanes::new(4, AFTER);
            Self {
                lanes,
                sent,
                message: 1 << 20,
                speeds: [10 << 30, 10 << 30],
                shares: [250; 8],
                most: 8,
                delay: 0,
                wished: None,
            }
        }

        /// Sends so many GiB, one at a time, and does what is wished; how many GiB had been sent at each change, and the queue pairs then.
        fn send(&mut self, gib: u64) -> Vec<(u64, u8)> {
            let mut changes = Vec::new();
            for _ in 0..gib {
                let bytes = 1 << 30;
                let speed = self.speeds[usize::from(self.sent.per_rail > 1)];
                self.sent.now += Duration::from_secs_f64(bytes as f64 / speed as f64);
                self.sent.bytes += bytes;
                self.sent.messages += bytes / self.message;
                if self.sent.per_rail > 1 {
                    self.sent.by_qp.iter_mut().zip(self.shares).for_each(|(lane, share)| *lane += bytes / 1000 * share);
                }
                if let Some(wish) = self.lanes.look(&self.sent) {
                    changes.push((self.sent.bytes >> 30, wish.per_rail));
                    self.wished = Some((self.sent.bytes + self.delay, wish.per_rail.min(self.most)));
                }
                if let Some((_, per_rail)) = self.wished.take_if(|(at, _)| self.sent.bytes >= *at) {
                    self.sent.per_rail = per_rail;
                    self.lanes.handle_new_queue_pairs();
                }
            }
            changes
        }
    }

    #[test]
    fn a_connection_takes_lanes_when_it_has_sent_enough_in_large_messages() {
        let mut conn = Conn { shares: [100, 300, 300, 300, 0, 0, 0, 0], ..Conn::new() };
        assert_eq!(conn.send(1000), [(16, 4)], "and keeps them while they differ");
        let mut small = Conn { message: 60 << 10, ..Conn::new() };
        assert_eq!(small.send(1000), [], "small messages");
        small.message = 1 << 20;
        assert_eq!(small.send(33).len(), 1, "later ones are large");
    }

    #[test]
    fn lanes_that_are_alike_are_given_up_and_tried_again_much_later() {
        let mut conn = Conn::new();
        // A first part of 4 GiB does not count: there are no lanes yet when it begins.
        assert_eq!(conn.send(4000), [(16, 4), (84, 1), (408, 4), (476, 1)]);
        assert_eq!(conn.sent.per_rail, 1);
    }

    #[test]
    fn lanes_that_are_alike_are_taken_again_for_good_if_one_queue_pair_is_slower() {
        let mut conn = Conn { speeds: [8 << 30, 10 << 30], ..Conn::new() };
        assert_eq!(conn.send(4000), [(16, 4), (84, 1), (152, 4)]);
        let mut conn = Conn { speeds: [9 << 30, 10 << 30], ..Conn::new() };
        assert_eq!(conn.send(300), [(16, 4), (84, 1)], "9/10 are not slower");
    }

    #[test]
    fn nothing_is_decided_while_a_wish_is_under_way() {
        let mut conn = Conn { delay: 30 << 30, ..Conn::new() };
        assert_eq!(conn.send(4000), [(16, 4), (111, 1), (462, 4), (557, 1)]);
    }

    #[test]
    fn lanes_that_come_late_are_looked_at_and_those_that_do_not_come_are_asked_for_again() {
        let mut conn = Conn { speeds: [8 << 30, 10 << 30], ..Conn::new() };
        assert_eq!(conn.send(84), [(16, 4), (84, 1)]);
        // The receiver's card has no more queue pairs when one turns out to be slower.
        conn.most = 1;
        assert_eq!(conn.send(100), [(152, 4)]);
        conn.most = 4;
        assert_eq!(conn.send(300), [(412, 4), (480, 1)]);
        let mut conn = Conn { most: 1, ..Conn::new() };
        assert_eq!(conn.send(30), [(16, 4)]);
        conn.sent.per_rail = 4;
        conn.lanes.handle_new_queue_pairs();
        assert_eq!(conn.send(400), [(344, 1)]);
    }

    #[test]
    fn speeds_on_other_rails_are_not_compared() {
        let mut conn = Conn { speeds: [8 << 30, 10 << 30], ..Conn::new() };
        assert_eq!(conn.send(84), [(16, 4), (84, 1)]);
        conn.sent.rails = 2;
        assert_eq!(conn.send(200), [(104, 4), (172, 1), (240, 4)]);
        let mut conn = Conn::new();
        assert_eq!(conn.send(40), [(16, 4)]);
        conn.sent.rails = 2;
        assert_eq!(conn.send(100), [(108, 1)], "measured anew");
    }

    #[test]
    fn pauses_of_the_job_do_not_count() {
        let mut conn = Conn::new();
        assert_eq!(conn.send(84), [(16, 4), (84, 1)]);
        for _ in 0..6 {
            conn.sent.now += Duration::from_secs(100);
            assert_eq!(conn.send(10), []);
        }
        assert_eq!(conn.send(20), [], "most measurements are without a pause");
    }

    #[test]
    fn where_the_peer_has_one_queue_pair_it_is_asked_ever_more_seldom() {
        let mut conn = Conn { most: 1, ..Conn::new() };
        assert_eq!(conn.send(5000), [(16, 4), (276, 4), (4376, 4)]);
    }

    /// After a fault the queue pairs may be lanes again, though one queue pair was being tried.
    #[test]
    fn lanes_that_come_back_during_the_trial_of_one_queue_pair_are_measured_as_lanes() {
        let mut conn = Conn::new();
        assert_eq!(conn.send(84), [(16, 4), (84, 1)]);
        conn.sent.per_rail = 4;
        conn.lanes.handle_new_queue_pairs();
        assert_eq!(conn.send(100), [(156, 1)], "all lanes carry as much");
    }

    #[test]
    fn lanes_are_compared_with_those_of_their_rail() {
        let sent_over = |rails, per_rail, by_qp: [u64; 4]| {
            let mut all = [0; MAX_QPS];
            all[..4].copy_from_slice(&by_qp);
            Sent { rails, per_rail, by_qp: all, ..Conn::new().sent }
        };
        assert!(are_alike(&sent_over(1, 4, [0; 4]), &sent_over(1, 4, [80; 4])), "there is no fifth lane");
        let sent = |by_qp| sent_over(2, 2, by_qp);
        assert!(are_alike(&sent([0; 4]), &sent([160, 80, 150, 75])));
        assert!(!are_alike(&sent([0; 4]), &sent([160, 80, 149, 80])));
        assert!(are_alike(&sent([60, 0, 0, 0]), &sent([160, 80, 100, 80])), "what was before does not count");
    }
}
