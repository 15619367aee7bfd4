//! Automatic lanes of a connection whose messages, speeds and faults a seed chooses.

use super::automatic_lanes::{AutomaticLanes, Carried, Sent};
use super::random::Random;
use std::collections::BTreeSet;

const MOST: u8 = 4;
const AFTER: u64 = 16 << 20;

/// A sender whose messages, speeds and faults a seed chooses.
struct Sender {
    lanes: AutomaticLanes,
    sent: Sent,
    random: Random,
    is_large: bool,
    are_faster: bool,
    /// The states in which it has looked.
    states: BTreeSet<&'static str>,
}

impl Sender {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sent = Sent { messages: 0, bytes: 0, rails: 1, per_rail: 1, has_room: true };
        let (is_large, are_faster) = (!random.one_in(4), !random.one_in(4));
        Self {
            lanes: AutomaticLanes::new(MOST, AFTER),
            sent,
            random,
            is_large,
            are_faster,
            states: BTreeSet::new(),
        }
    }

    /// Sends as much as a measurement takes, and does what is requested.
    fn step(&mut self) {
        let bytes = AFTER / 4;
        self.sent.bytes += bytes;
        self.sent.messages += if self.is_large { 4 } else { bytes / 1000 };
        let ns = if self.are_faster && self.sent.per_rail > 1 { 1000 } else { 1500 };
        self.lanes.handle_carried(self.sent.bytes, Carried { bytes, ns });
        if self.random.one_in(64) {
            self.sent.rails = 3 - self.sent.rails;
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
        self.states.insert(self.lanes.state_name());
        let change = self.lanes.look(&self.sent);
        // Nothing is decided while there is a request.
        assert!(change.is_none() || !self.lanes.is_due(u64::MAX));
        if let Some(change) = change {
            assert!(change.per_rail == 1 || change.per_rail == MOST && self.sent.has_room);
            let per_rail = if self.random.one_in(8) { 1 } else { change.per_rail };
            self.handle_new(per_rail);
        }
    }

    fn handle_new(&mut self, per_rail: u8) {
        self.sent.per_rail = per_rail;
        self.lanes.handle_new_queue_pairs();
    }
}

#[test]
fn lanes_are_wished_for_where_there_is_room_and_nothing_is_decided_while_there_is_a_wish() {
    let mut states = BTreeSet::new();
    for seed in 0..200 {
        let mut sender = Sender::new(seed);
        (0..500).for_each(|_| sender.step());
        states.append(&mut sender.states);
    }
    assert_eq!(
        Vec::from_iter(states),
        ["Trial, with lanes", "Trial, with one queue pair", "Waiting"]
    );
}
