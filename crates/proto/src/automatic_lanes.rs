//! When a connection adds lanes by itself, and when it drops them again (`FERRITE_LANES=auto`,
//! docs/slow.md).
//!
//! Lanes cost queue pairs and work requests. They are useless if a fabric has one path, or spreads
//! packets itself. So a connection that has sent enough tries them. It alternates between one queue
//! pair and lanes, and compares how fast the network carries what is in flight ([`Carried`]).
//!
//! ```text
//!                has sent enough,
//!                in large messages       one      lanes     one      lanes
//!  with one queue pair ─────────────► ├────────┼────────┼────────┼────────┤ ───► with lanes, if they were faster in each
//!   ▲   ▲                                      │        │        │                 leg than one queue pair in each leg
//!   │   └── lanes were no faster in one leg ◄──┴────────┴────────┘                    │
//!   │                                 lanes    one      lanes     one                 │ has sent sixteen times as much
//!   └── no faster in one leg ◄────── ├────────┼────────┼────────┼────────┤ ◄──────────┘
//! ```
//!
//! Other traffic may slow down one leg by chance, but not every other leg. Nothing is final:
//! another trial follows after sixteen times as much data as before.

/// The least average message size of a connection with lanes.
const LARGE: u64 = 64 << 10;
/// Parts of a trial, alternating between one queue pair and lanes.
const LEGS: usize = 4;
/// Measurements of a leg begin after this many parts: by then lanes have learnt their shares.
const WARM_UP: u64 = 4;
/// The distance between measurements: at least this fraction of the data before the first trial.
const PARTS: u64 = 4;
/// Lanes help if they are faster by more than this ratio.
const GAIN: (u64, u64) = (8, 7);
/// The data until the next trial grows by this factor after each.
const LONGER: u64 = 16;

/// What a sender has sent.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Messages since the connection began.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rails that it uses now.
    pub rails: u8,
    /// Queue pairs on each rail now.
    pub per_rail: u8,
    /// Whether its cards may have more queue pairs for lanes.
    pub has_room: bool,
}

/// A change of the number of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneChange {
    /// Queue pairs on each rail.
    pub per_rail: u8,
    /// For the log: the observation that leads to it.
    pub why: &'static str,
}

/// The state of a connection with automatic lanes.
#[derive(Debug)]
pub struct AutomaticLanes {
    /// Lanes on each rail, when there are lanes.
    most: u8,
    /// The bytes until the next trial.
    wait: u64,
    /// The least bytes between measurements.
    part: u64,
    /// No trial or measurement begins before this many bytes have been sent.
    next: u64,
    /// A change is requested, and there are no new queue pairs yet.
    is_asked: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Between trials; what had been sent when the latest one ended.
    Waiting {
        messages: u64,
        bytes: u64,
    },
    Trial(Box<Trial>),
}

#[derive(Debug)]
struct Trial {
    rails: u8,
    begins_with_lanes: bool,
    /// The speeds of the finished legs.
    speeds: Vec<Speed>,
    /// The present leg.
    measuring: Speeds,
}

impl AutomaticLanes {
    /// A connection that begins with one queue pair on each rail, and tries up to `most` after this
    /// many bytes.
    pub fn new(most: u8, after: u64) -> Self {
        let stage = Stage::Waiting { messages: 0, bytes: 0 };
        Self {
            most,
            wait: after,
            part: (after / PARTS).max(1),
            next: after,
            is_asked: false,
            stage,
        }
    }

    /// Whether a decision is due after this many bytes; if so, call [`Self::look`].
    pub fn is_due(&self, bytes: u64) -> bool {
        let is_time = match &self.stage {
            Stage::Waiting { .. } => bytes >= self.next,
            Stage::Trial(trial) => trial.measuring.speed().is_some(),
        };
        is_time && !self.is_asked
    }

    /// Whether speeds are being measured.
    pub fn is_in_trial(&self) -> bool {
        matches!(self.stage, Stage::Trial(_))
    }

    /// Handles new queue pairs, after a request or a fault. They are the result of a pending
    /// request.
    pub fn handle_new_queue_pairs(&mut self) {
        self.is_asked = false;
    }

    /// Handles an acknowledged message. `carried` is what was in flight meanwhile; `bytes` have
    /// been sent so far.
    pub fn handle_carried(&mut self, bytes: u64, carried: Carried) {
        if let Stage::Trial(trial) = &mut self.stage
            && bytes >= self.next
            && !self.is_asked
        {
            trial.measuring.add(carried);
            self.next = bytes.saturating_add(self.part);
        }
    }

    /// Decides. After a request, decides nothing until there are new queue pairs, as many as
    /// requested or fewer.
    pub fn look(&mut self, sent: &Sent) -> Option<LaneChange> {
        if !self.is_due(sent.bytes) {
            return None;
        }
        let change = self.decide(sent);
        self.is_asked = change.is_some();
        change
    }

    /// For a generated page.
    #[cfg(test)]
    pub(super) fn state_name(&self) -> &'static str {
        match &self.stage {
            Stage::Waiting { .. } => "Waiting",
            Stage::Trial(trial) if trial.is_with_lanes() => "Trial, with lanes",
            Stage::Trial(_) => "Trial, with one queue pair",
        }
    }

    fn decide(&mut self, sent: &Sent) -> Option<LaneChange> {
        let has_lanes = sent.per_rail > 1;
        let one = |why| has_lanes.then_some(LaneChange { per_rail: 1, why });
        let lanes = |why| LaneChange { per_rail: self.most, why };
        match &mut self.stage {
            Stage::Waiting { messages, bytes } => {
                let (messages, bytes) =
                    (sent.messages.saturating_sub(*messages), sent.bytes.saturating_sub(*bytes));
                if bytes / messages.max(1) < LARGE {
                    self.wait(sent);
                    return one("messages are small");
                }
                self.stage = Stage::Trial(Box::new(Trial::new(sent)));
                self.next = sent.bytes.saturating_add(WARM_UP.saturating_mul(self.part));
                None
            }
            Stage::Trial(trial) => {
                let speed = trial.measuring.speed()?;
                // There is nothing to compare: the peer has one queue pair, or a card has no more.
                if trial.rails != sent.rails || trial.is_with_lanes() != has_lanes {
                    self.end(sent);
                    return one("they could not be compared with one queue pair");
                }
                trial.speeds.push(speed);
                trial.measuring = Speeds::default();
                if !trial.is_gain() {
                    self.end(sent);
                    return one("they were no faster than one queue pair");
                }
                if !has_lanes && !sent.has_room {
                    self.end(sent);
                    return None;
                }
                if trial.speeds.len() == LEGS {
                    let change = lanes("they were faster than one queue pair");
                    self.end(sent);
                    return (!has_lanes).then_some(change);
                }
                let change = one("to compare one queue pair with them");
                let change = change.unwrap_or_else(|| lanes("to compare them with one queue pair"));
                self.next = sent.bytes.saturating_add(WARM_UP.saturating_mul(self.part));
                Some(change)
            }
        }
    }

    /// Ends a trial that is over, or impossible now.
    fn end(&mut self, sent: &Sent) {
        self.wait = self.wait.saturating_mul(LONGER);
        self.wait(sent);
    }

    fn wait(&mut self, sent: &Sent) {
        self.stage = Stage::Waiting { messages: sent.messages, bytes: sent.bytes };
        self.next = sent.bytes.saturating_add(self.wait);
    }
}

impl Trial {
    fn new(sent: &Sent) -> Self {
        let begins_with_lanes = sent.per_rail > 1;
        let speeds = Vec::with_capacity(LEGS);
        Self { rails: sent.rails, begins_with_lanes, speeds, measuring: Speeds::default() }
    }

    /// Whether the present leg is with lanes.
    fn is_with_lanes(&self) -> bool {
        self.begins_with_lanes == self.speeds.len().is_multiple_of(2)
    }

    /// Whether each leg with lanes so far was faster than each with one queue pair.
    fn is_gain(&self) -> bool {
        let legs = |with_lanes: bool| {
            let first = usize::from(with_lanes != self.begins_with_lanes);
            self.speeds.iter().skip(first).step_by(2)
        };
        legs(true).all(|lanes| legs(false).all(|one| lanes.is_gain(one, GAIN)))
    }
}

/// Measurements per speed. The median counts, so a few slow ones do not.
pub const MEASUREMENTS: usize = 16;

/// How fast the network carries a sender's data in flight, independent of the application.
///
/// A measurement lasts from the posting of a message to its acknowledgement. In this time the
/// network has carried everything that was in flight at its beginning. Pauses of the application
/// between messages are not included: sending less does not look like a slower network.
///
/// The more is in flight, the smaller the part of latency in the time. That alone increases a
/// speed, by at most the factor by which more is in flight. So a higher speed is only a gain if it
/// grew by more than the data in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes in flight at its beginning.
    pub bytes: u64,
    /// How long they took.
    pub ns: u64,
}

/// The speed from a number of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speed {
    /// Bytes per second: the median.
    pub per_second: u64,
    /// Bytes in flight: the median.
    pub under_way: u64,
}

/// The latest measurements.
#[derive(Debug, Clone, Default)]
pub struct Speeds {
    carried: [Carried; MEASUREMENTS],
    count: usize,
}

impl Speeds {
    /// Adds a measurement; it replaces the oldest one if there are enough.
    pub fn add(&mut self, carried: Carried) {
        self.carried[self.count % MEASUREMENTS] = carried;
        self.count += 1;
    }

    /// The speed, if there are enough measurements.
    pub fn speed(&self) -> Option<Speed> {
        let median = |of: fn(&Carried) -> u64| {
            let mut all = self.carried.each_ref().map(of);
            all.sort_unstable();
            all[MEASUREMENTS / 2]
        };
        (self.count >= MEASUREMENTS).then(|| Speed {
            per_second: median(Carried::per_second),
            under_way: median(|carried| carried.bytes),
        })
    }
}

impl Carried {
    fn per_second(&self) -> u64 {
        let speed = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.ns.max(1));
        u64::try_from(speed).unwrap_or(u64::MAX)
    }
}

impl Speed {
    /// Whether it is more than `most` / `least` times as fast as `before`, and not because more is
    /// in flight.
    pub fn is_gain(&self, before: &Self, (most, least): (u64, u64)) -> bool {
        let times = |value: u64, factor: u64| u128::from(value) * u128::from(factor);
        times(self.per_second, least) > times(before.per_second, most)
            && times(self.under_way, least) <= times(before.under_way, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod trials {
        use super::*;

        const AFTER: u64 = 16 << 30;
        const MIB: u64 = 1 << 20;

        /// A connection, and how fast it is.
        struct Conn {
            lanes: AutomaticLanes,
            sent: Sent,
            message: u64,
            /// Bytes a second with one queue pair and with lanes.
            speeds: [u64; 2],
            /// So much is under way with one queue pair, and with lanes.
            under_way: [u64; 2],
            /// The peer takes no more than this.
            most: u8,
            /// So many bytes are sent before a request has come true.
            delay: u64,
            /// When that is, and with how many queue pairs.
            requested: Option<(u64, u8)>,
        }

        impl Conn {
            fn new() -> Self {
                let sent = Sent { messages: 0, bytes: 0, rails: 1, per_rail: 1, has_room: true };
                let lanes = AutomaticLanes::new(4, AFTER);
                let speeds = [10 << 30, 10 << 30];
                Self {
                    lanes,
                    sent,
                    message: MIB,
                    speeds,
                    under_way: [8 * MIB; 2],
                    most: 8,
                    delay: 0,
                    requested: None,
                }
            }

            /// One for which lanes are faster.
            fn with_gain() -> Self {
                Self { speeds: [10 << 30, 12 << 30], ..Self::new() }
            }

            /// Sends so many GiB, one at a time, and does what is requested; how many GiB had been
            /// sent at each change, and the queue pairs then.
            fn send(&mut self, gib: u64) -> Vec<(u64, u8)> {
                let mut changes = Vec::new();
                for _ in 0..gib {
                    let kind = usize::from(self.sent.per_rail > 1);
                    let (bytes, speed) = (self.under_way[kind], self.speeds[kind]);
                    self.lanes.handle_carried(
                        self.sent.bytes,
                        Carried { bytes, ns: bytes * 1_000_000_000 / speed },
                    );
                    self.sent.bytes += 1 << 30;
                    self.sent.messages += (1 << 30) / self.message;
                    if let Some(change) = self.lanes.look(&self.sent) {
                        changes.push((self.sent.bytes >> 30, change.per_rail));
                        self.requested =
                            Some((self.sent.bytes + self.delay, change.per_rail.min(self.most)));
                    }
                    if let Some((_, per_rail)) =
                        self.requested.take_if(|(at, _)| self.sent.bytes >= *at)
                    {
                        self.sent.per_rail = per_rail;
                        self.lanes.handle_new_queue_pairs();
                    }
                }
                changes
            }
        }

        #[test]
        fn a_connection_measures_before_it_takes_lanes_and_keeps_them_if_they_were_faster_in_each_leg()
         {
            let mut conn = Conn::with_gain();
            assert_eq!(conn.send(600), [(93, 4), (170, 1), (247, 4)]);
            assert_eq!(conn.sent.per_rail, 4);
            let mut small = Conn { message: 60 << 10, ..Conn::with_gain() };
            assert_eq!(small.send(1000), [], "small messages");
            small.message = MIB;
            assert_eq!(small.send(120).len(), 1, "later ones are large");
        }

        #[test]
        fn lanes_that_are_no_faster_are_given_up_after_one_leg_and_tried_again_much_later() {
            for speeds in [[10, 10], [10, 11], [10, 9]] {
                let mut conn = Conn { speeds: speeds.map(|speed| speed << 30), ..Conn::new() };
                assert_eq!(conn.send(4600), [(93, 4), (170, 1), (503, 4), (580, 1)], "{speeds:?}");
                assert_eq!(conn.sent.per_rail, 1);
            }
        }

        /// Each trial begins with what there is, and waits for sixteen times as much as the one
        /// before.
        #[test]
        fn lanes_that_were_faster_are_compared_again_and_given_up_when_they_are_not_any_more() {
            let mut conn = Conn::with_gain();
            assert_eq!(conn.send(570).len(), 3);
            assert_eq!(conn.send(600), [(657, 1), (734, 4), (811, 1), (888, 4)]);
            conn.speeds[1] = 10 << 30;
            assert_eq!(conn.send(4000), [(5061, 1)]);
            conn.speeds[1] = 12 << 30;
            assert_eq!(conn.send(80_000)[..2], [(70_751, 4), (70_828, 1)]);
        }

        /// The network is half as fast for other reasons in any part of the time, so that any legs
        /// are slower.
        #[test]
        fn a_slower_phase_is_not_taken_for_the_effect_of_lanes() {
            for begin in (0..330).step_by(33) {
                for end in (begin..400).step_by(33) {
                    let mut conn = Conn::new();
                    for gib in 0..400 {
                        let is_slow = (begin..end).contains(&gib);
                        conn.speeds = [if is_slow { 5 << 30 } else { 10 << 30 }; 2];
                        conn.send(1);
                    }
                    assert_eq!(conn.sent.per_rail, 1, "slower from {begin} to {end} GiB");
                }
            }
        }

        #[test]
        fn a_phase_with_more_under_way_is_not_taken_for_the_effect_of_lanes() {
            // Latency is most of the time, so that twice as much under way is nearly twice as fast.
            let mut conn =
                Conn { speeds: [5 << 30, 9 << 30], under_way: [MIB, 2 * MIB], ..Conn::new() };
            assert_eq!(conn.send(400), [(93, 4), (170, 1)]);
            let mut conn =
                Conn { speeds: [5 << 30, 9 << 30], under_way: [2 * MIB, MIB], ..Conn::new() };
            assert_eq!(conn.send(400), [(93, 4), (170, 1), (247, 4)], "faster with less under way");
        }

        #[test]
        fn nothing_is_decided_or_measured_while_a_change_request_is_under_way() {
            let mut conn = Conn { delay: 300 << 30, ..Conn::new() };
            assert_eq!(conn.send(600), [(93, 4), (454, 1)]);
        }

        #[test]
        fn lanes_that_do_not_come_are_asked_for_ever_more_seldom() {
            let mut conn = Conn { most: 1, ..Conn::with_gain() };
            assert_eq!(conn.send(5000), [(93, 4), (503, 4), (4753, 4)]);
            // After a fault there are lanes at last, but not when they were tried.
            conn.sent.per_rail = 4;
            conn.lanes.handle_new_queue_pairs();
            assert_eq!(conn.send(80_000).first(), Some(&(70_443, 1)));
        }

        #[test]
        fn without_room_for_more_queue_pairs_no_lanes_are_asked_for() {
            let mut conn = Conn::with_gain();
            conn.sent.has_room = false;
            assert_eq!(conn.send(4000), []);
            let mut conn = Conn::with_gain();
            assert_eq!(conn.send(90), []);
            conn.sent.has_room = false;
            assert_eq!(conn.send(250), [], "gone during the trial");
            conn.sent.has_room = true;
            assert_eq!(conn.send(150), [(426, 4)]);
            conn.sent.has_room = false;
            assert_eq!(conn.send(100), [(503, 1)], "what it has, it gives up to compare");
        }

        #[test]
        fn speeds_on_other_rails_or_of_other_queue_pairs_than_were_asked_for_are_not_compared() {
            let mut conn = Conn::with_gain();
            assert_eq!(conn.send(100), [(93, 4)]);
            conn.sent.rails = 2;
            assert_eq!(conn.send(400), [(170, 1)]);
            assert_eq!(conn.send(50), [(503, 4)], "sixteen times as much later");
            let mut conn = Conn::with_gain();
            assert_eq!(conn.send(180), [(93, 4), (170, 1)]);
            // A fault has brought lanes back, which the trial has not asked for.
            conn.sent.per_rail = 4;
            conn.lanes.handle_new_queue_pairs();
            assert_eq!(conn.send(100), [(247, 1)]);
        }

        #[test]
        fn lanes_are_given_up_when_messages_have_become_small() {
            let mut conn = Conn::with_gain();
            assert_eq!(conn.send(570).len(), 3);
            conn.message = 8 << 10;
            assert_eq!(conn.send(100_000).last().map(|(_, per_rail)| *per_rail), Some(1));
        }
    }

    mod measurements {
        use super::*;

        const GAIN: (u64, u64) = (8, 7);

        /// The speed of a path of this latency and bandwidth, in ns and bytes in one of them, with
        /// so much under way.
        fn speed(latency: u64, bandwidth: u64, under_way: u64) -> Speed {
            let mut speeds = Speeds::default();
            (0..MEASUREMENTS).for_each(|_| {
                speeds.add(Carried { bytes: under_way, ns: latency + under_way / bandwidth })
            });
            speeds.speed().expect("enough")
        }

        #[test]
        fn there_is_a_speed_after_enough_measurements_and_long_ones_do_not_count() {
            let mut speeds = Speeds::default();
            for number in 0..MEASUREMENTS {
                assert_eq!(speeds.speed(), None, "{number} measurements");
                let ns = if number % 3 == 0 { 1_000_000_000 } else { 1000 };
                speeds.add(Carried { bytes: 1 << 20, ns });
            }
            assert_eq!(
                speeds.speed(),
                Some(Speed { per_second: (1 << 20) * 1_000_000, under_way: 1 << 20 })
            );
            (0..MEASUREMENTS).for_each(|_| speeds.add(Carried { bytes: 1 << 20, ns: 2000 }));
            assert_eq!(
                speeds.speed().map(|speed| speed.per_second),
                Some((1 << 20) * 500_000),
                "the latest ones count"
            );
            (0..MEASUREMENTS).for_each(|_| speeds.add(Carried { bytes: u64::MAX, ns: 0 }));
            assert_eq!(speeds.speed().map(|speed| speed.per_second), Some(u64::MAX));
        }

        #[test]
        fn more_than_the_gain_is_a_gain_and_as_much_is_not() {
            let at = |per_second| Speed { per_second, under_way: 1 << 20 };
            assert!(at(8001).is_gain(&at(7000), GAIN) && !at(8000).is_gain(&at(7000), GAIN));
            assert!(at(u64::MAX).is_gain(&at(1), GAIN) && !at(1).is_gain(&at(u64::MAX), GAIN));
        }

        /// Twice as much under way is nearly twice as fast where latency is most of the time.
        #[test]
        fn that_more_is_under_way_is_no_gain() {
            for (latency, bandwidth) in [(10_000, 50), (100_000, 50), (1000, 1)] {
                for (before, after) in
                    [(64 << 10, 128 << 10), (64 << 10, 512 << 10), (512 << 10, 590 << 10)]
                {
                    let (before, after) =
                        (speed(latency, bandwidth, before), speed(latency, bandwidth, after));
                    assert!(!after.is_gain(&before, GAIN), "{before:?}, then {after:?}");
                }
            }
            assert!(
                speed(10_000, 50, 128 << 10).per_second
                    > speed(10_000, 50, 64 << 10).per_second * 8 / 7
            );
            assert!(
                speed(10_000, 200, 512 << 10).is_gain(&speed(10_000, 50, 512 << 10), GAIN),
                "a faster network is"
            );
            assert!(
                speed(1000, 200, 256 << 10).is_gain(&speed(1000, 50, 512 << 10), GAIN),
                "with less under way, too"
            );
        }
    }
}
