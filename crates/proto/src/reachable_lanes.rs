//! What a connection with automatic lanes sees in which state of theirs: a table of docs/schedules.md.

use super::automatic_lanes::{AutomaticLanes, Carried, Sent};
use super::random::Random;
use super::sim::visits::{Machine, Visits};

const MOST: u8 = 4;
const AFTER: u64 = 16 << 20;

const MACHINE: Machine = Machine {
    rows: &[("sender", "Waiting"), ("sender", "Trial, with one queue pair"), ("sender", "Trial, with lanes")],
    events: &[
        "a measurement",
        "one queue pair",
        "one queue pair, and no room",
        "lanes",
        "other rails",
        "new queue pairs",
    ],
    impossible: |_, _, _| None,
};

/// A sender whose messages, speeds and faults a seed chooses.
struct Sender {
    lanes: AutomaticLanes,
    sent: Sent,
    random: Random,
    is_large: bool,
    are_faster: bool,
    visits: Visits,
}

impl Sender {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sent = Sent { messages: 0, bytes: 0, rails: 1, per_rail: 1, has_room: true };
        let (is_large, are_faster) = (!random.one_in(4), !random.one_in(4));
        Self { lanes: AutomaticLanes::new(MOST, AFTER), sent, random, is_large, are_faster, visits: Visits::new() }
    }

    fn note(&mut self, event: &'static str) {
        *self.visits.entry(("sender", self.lanes.state_name(), event)).or_default() += 1;
    }

    /// Sends as much as a measurement takes, and does what is wished.
    fn step(&mut self) {
        let bytes = AFTER / 4;
        self.sent.bytes += bytes;
        self.sent.messages += if self.is_large { 4 } else { bytes / 1000 };
        let ns = if self.are_faster && self.sent.per_rail > 1 { 1000 } else { 1500 };
        self.note("a measurement");
        self.lanes.handle_carried(self.sent.bytes, Carried { bytes, ns });
        if self.random.one_in(64) {
            self.sent.rails = 3 - self.sent.rails;
            self.note("other rails");
        }
        if self.random.one_in(128) {
            self.is_large = !self.is_large;
            self.are_faster = !self.are_faster;
        }
        if self.random.one_in(16) {
            self.sent.has_room = !self.sent.has_room;
        }
        // A fault: the new queue pairs are as many as a card has then.
        if self.random.one_in(64) {
            let per_rail = if self.random.one_in(2) { 1 } else { MOST };
            self.handle_new(per_rail);
        }
        self.look();
    }

    fn look(&mut self) {
        if !self.lanes.is_due(self.sent.bytes) {
            return;
        }
        self.note(match (self.sent.per_rail > 1, self.sent.has_room) {
            (true, _) => "lanes",
            (false, true) => "one queue pair",
            (false, false) => "one queue pair, and no room",
        });
        let wish = self.lanes.look(&self.sent);
        // Nothing is decided while there is a wish.
        assert!(wish.is_none() || !self.lanes.is_due(u64::MAX));
        if let Some(wish) = wish {
            assert!(wish.per_rail == 1 || wish.per_rail == MOST && self.sent.has_room);
            let per_rail = if self.random.one_in(8) { 1 } else { wish.per_rail };
            self.handle_new(per_rail);
        }
    }

    fn handle_new(&mut self, per_rail: u8) {
        self.note("new queue pairs");
        self.sent.per_rail = per_rail;
        self.lanes.handle_new_queue_pairs();
    }
}

#[test]
fn the_page_says_what_comes_in_which_state_of_automatic_lanes() {
    let mut visits = Visits::new();
    for seed in 0..200 {
        let mut sender = Sender::new(seed);
        (0..500).for_each(|_| sender.step());
        sender.visits.into_iter().for_each(|(visit, count)| *visits.entry(visit).or_default() += count);
    }
    MACHINE.check(&visits, "<!-- lanes -->");
}
