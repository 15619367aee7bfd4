//! Every order of events of a small connection: two messages, two faults, one break of the control
//! connection.
//!
//! The machines are the real ones. Messages are one request each. What their callers do takes time:
//! a job ends in an event of its own. Packets of queue pairs that are gone may arrive at any time,
//! and are executed if the responder is still there. Time advances only to the end of a pause, so
//! an end never waits for a frame that was lost: that frame is sent again.

use super::*;
use crate::cts::Cts;
use crate::recovery::missing_list::{MissingList, MissingMessage};
use crate::sample::endpoint;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

const MESSAGES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Sent {
    /// The attempt whose queue pairs it was posted to last.
    posted: Option<u32>,
    /// The attempts whose packets of it are on their way, as a bit mask.
    packets: u8,
    has_arrived: bool,
    is_received: bool,
    /// Whether the sender's device, or a missing list, has said that it has arrived.
    is_acknowledged: bool,
    is_sent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    machines: [Recovery; 2],
    jobs: [Option<Action>; 2],
    /// The attempt of the queue pairs that each end has.
    queue_pairs: [Option<u32>; 2],
    frames: [Vec<Message>; 2],
    is_connected: bool,
    has_back: [bool; 2],
    now: Time,
    faults: u8,
    breaks: u8,
    changes: u8,
    is_draining: bool,
    /// Whether the sender has had an answer.
    is_heard: bool,
    /// Whether the sender has not been told that the control connection is lost.
    has_lost: bool,
    messages: [Sent; MESSAGES],
}

/// Takes whether an event is possible, and the event.
type Branch<'a> = dyn FnMut(bool, &dyn Fn(&mut World)) + 'a;

impl World {
    fn new(faults: u8, breaks: u8, changes: u8) -> Self {
        let machine = |role| Recovery::new(role, RailMask::first(2), GIVE_UP);
        Self {
            machines: [machine(Role::Sender), machine(Role::Receiver)],
            jobs: [None, None],
            queue_pairs: [Some(0); 2],
            frames: [Vec::new(), Vec::new()],
            is_connected: true,
            has_back: [false; 2],
            now: Time::ZERO,
            faults,
            breaks,
            changes,
            is_draining: false,
            is_heard: false,
            has_lost: false,
            messages: Default::default(),
        }
    }

    /// All states that one event leads to.
    fn next(&self) -> Vec<Self> {
        let mut found = Vec::new();
        let mut on = |is_possible: bool, event: &dyn Fn(&mut Self)| {
            if is_possible {
                let mut next = self.clone();
                event(&mut next);
                next.act();
                found.push(next);
            }
        };
        for i in [0, 1] {
            on(self.jobs[i].is_some(), &|world| world.finish(i));
            on(!self.frames[i].is_empty(), &|world| {
                let message = world.frames[i].remove(0);
                world.is_heard |= i == 0 && matches!(message, Message::Heard { .. });
                world.machines[i].handle_message(world.now, message).expect("what a Ferrite says");
            });
            on(self.has_back[i], &|world| {
                world.has_back[i] = false;
                world.machines[i].handle_back(world.now);
            });
            on(self.faults > 0, &|world| {
                world.faults -= 1;
                world.machines[i].handle_fault(world.now, "a fault");
            });
        }
        on(self.changes > 0, &|world| {
            world.changes -= 1;
            world.machines[0].handle_change_request(world.now, "a request".into());
        });
        let is_drained =
            self.messages.iter().all(|sent| sent.posted.is_none() || sent.is_acknowledged);
        on(self.is_draining && is_drained, &|world| {
            world.is_draining = false;
            world.machines[0].handle_drained(world.now);
        });
        on(self.is_connected && self.breaks > 0, &|world| {
            (world.is_connected, world.breaks) = (false, world.breaks - 1);
            world.has_lost = world.changes > 0 || world.machines[0].is_about_to_change();
            world.frames.iter_mut().for_each(Vec::clear);
        });
        on(!self.is_connected && self.has_lost, &|world| {
            world.has_lost = false;
            world.machines[0].handle_lost(world.now);
        });
        on(!self.is_connected, &|world| {
            (world.is_connected, world.has_lost, world.has_back) = (true, false, [true; 2]);
        });
        let pause = self.machines.iter().filter_map(Recovery::poll_timeout).min();
        let pause = pause.filter(|pause| *pause < self.now + SECOND);
        on(pause.is_some(), &|world| {
            world.now = pause.unwrap_or_default().max(world.now);
            world.machines.iter_mut().for_each(|machine| machine.handle_timeout(world.now));
        });
        for m in 0..MESSAGES {
            self.traffic(m, &mut on);
        }
        found
    }

    /// What may happen to message `m`.
    fn traffic(&self, m: usize, on: &mut Branch<'_>) {
        let sent = self.messages[m];
        let [sender, receiver] = &self.machines;
        let may_post = sender.is_running()
            && sent.posted.is_none()
            && (m == 0 || self.messages[m - 1].posted.is_some());
        on(may_post, &|world| world.post(m));
        for attempt in (0..8).filter(|attempt| sent.packets & 1 << attempt != 0) {
            on(true, &|world| world.arrive(m, attempt));
        }
        let is_executed = sent.has_arrived && sent.posted == Some(sender.attempt());
        on(sender.is_running() && is_executed && !sent.is_acknowledged, &|world| {
            world.messages[m].is_acknowledged = true;
        });
        on(sent.is_acknowledged && !sent.is_sent, &|world| world.messages[m].is_sent = true);
        on(receiver.is_running() && sent.has_arrived && !sent.is_received, &|world| {
            world.messages[m].is_received = true;
        });
    }

    fn post(&mut self, m: usize) {
        let attempt = self.machines[0].attempt();
        self.messages[m].posted = Some(attempt);
        self.messages[m].packets |= 1 << attempt;
    }

    /// A packet of `attempt` arrives. The responder is there only if its queue pairs are those of
    /// the attempt.
    fn arrive(&mut self, m: usize, attempt: u32) {
        let sent = &mut self.messages[m];
        sent.packets &= !(1 << attempt);
        if self.queue_pairs[1] == Some(attempt) {
            assert!(!sent.is_received, "a write into a buffer whose receive has completed");
            sent.has_arrived = true;
        }
    }

    /// Carries out what the machines ask for. Jobs are begun.
    fn act(&mut self) {
        for i in [0, 1] {
            while let Some(action) = self.machines[i].poll_action() {
                match action {
                    Action::Send(message) if self.is_connected => self.frames[1 - i].push(message),
                    Action::Send(_) | Action::Recovered { .. } => {}
                    Action::Drain => {
                        assert!(
                            self.is_heard,
                            "what works is given up, and the peer has not answered"
                        );
                        (self.is_draining, self.is_heard) = (true, false);
                    }
                    Action::Continue => self.is_draining = false,
                    Action::Discard => self.queue_pairs[i] = None,
                    Action::Fail(text) => panic!("{text}"),
                    job => assert!(self.jobs[i].replace(job).is_none(), "two jobs at once"),
                }
            }
        }
        let [a, b] = self.machines.each_ref().map(Recovery::attempt);
        assert!(a.abs_diff(b) <= 1, "attempts {a} and {b}");
    }

    fn finish(&mut self, i: usize) {
        let now = self.now;
        let end = |rails: RailMask| Ok(endpoint(rails.count().into(), 1, false));
        match self.jobs[i].take().expect("a job") {
            Action::Fence => {
                let is_used = i == 1
                    && self.queue_pairs[0] == self.queue_pairs[1]
                    && !self.machines[0].has_fenced();
                assert!(!is_used, "the sender may still send to what the receiver fences");
                self.is_draining &= i != 0;
                self.queue_pairs[i] = None;
                self.machines[i].handle_fenced(now);
            }
            Action::Create { attempt, rails } => {
                assert_eq!(
                    self.queue_pairs[i].replace(attempt),
                    None,
                    "earlier queue pairs are there"
                );
                self.machines[i].handle_created(now, attempt, end(rails));
            }
            Action::Connect { attempt, rails, .. } => {
                let before = self.queue_pairs[i].replace(attempt);
                assert_eq!(
                    before,
                    if i == 0 { Some(attempt) } else { None },
                    "earlier queue pairs are there"
                );
                self.machines[i].handle_connected(now, attempt, end(rails));
            }
            Action::Resume { attempt, missing_list } => {
                assert_eq!(self.queue_pairs[i], Some(attempt), "earlier queue pairs are there");
                let composed = (i == 1).then(|| self.compose());
                if let Some(missing_list) = missing_list {
                    self.apply(&missing_list, attempt);
                }
                self.machines[i].handle_resumed(now, attempt, composed);
            }
            other => panic!("{other:?} is no job"),
        }
    }

    fn compose(&self) -> MissingList {
        let seqs = (0..MESSAGES).filter(|m| !self.messages[*m].has_arrived).map(|m| m as u32 + 1);
        let missing = |seq| MissingMessage { cts: Cts { seq, ..Cts::default() }, extra: [0; 2] };
        MissingList { oldest: 1, next: MESSAGES as u32 + 1, missing: seqs.map(missing).collect() }
    }

    fn apply(&mut self, missing_list: &MissingList, attempt: u32) {
        for m in 0..MESSAGES {
            let sent = &mut self.messages[m];
            let is_listed =
                missing_list.missing.iter().any(|missing| missing.cts.seq == m as u32 + 1);
            match (is_listed, sent.posted) {
                (true, Some(_)) => {
                    assert!(!sent.is_sent, "a message is lost");
                    sent.is_acknowledged = false;
                    (sent.posted, sent.packets) = (Some(attempt), sent.packets | 1 << attempt);
                }
                (false, Some(_)) => sent.is_acknowledged = true,
                (true, None) => {}
                (false, None) => panic!("a message has arrived that was not sent"),
            }
        }
    }

    /// Whether nothing is to be done any more, and all is well.
    fn check_end(&self) {
        let [sender, receiver] = &self.machines;
        assert!(sender.is_running() && receiver.is_running(), "stuck: {self:#?}");
        assert_eq!(
            (sender.attempt(), self.queue_pairs[0]),
            (receiver.attempt(), self.queue_pairs[1])
        );
        let is_done = |sent: &Sent| sent.is_sent && sent.is_received && sent.packets == 0;
        assert!(self.messages.iter().all(is_done), "{:?}", self.messages);
    }
}

fn hash(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Visits every state. Returns how many there are, and after how many events the last new one
/// comes.
fn explore(faults: u8, breaks: u8, changes: u8) -> (usize, usize) {
    let mut frontier = vec![World::new(faults, breaks, changes)];
    let mut seen: HashSet<u64> = frontier.iter().map(hash).collect();
    let mut depth = 0;
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for world in &frontier {
            let states = world.next();
            if states.is_empty() {
                world.check_end();
            }
            next.extend(states.into_iter().filter(|state| seen.insert(hash(state))));
        }
        frontier = next;
        depth += usize::from(!frontier.is_empty());
    }
    println!(
        "{faults} faults, {breaks} breaks, {changes} changes: {} states, depth {depth}",
        seen.len()
    );
    (seen.len(), depth)
}

#[test]
fn every_order_of_events_with_a_fault_and_a_break_of_the_control_connection_ends_well() {
    let (states, depth) = explore(1, 1, 0);
    assert!(states > 1000 && depth > 20, "{states} states, depth {depth}");
}

#[test]
fn every_order_of_events_with_a_change_request_for_other_paths_and_a_fault_ends_well() {
    let (states, depth) = explore(1, 0, 1);
    assert!(states > 1000 && depth > 20, "{states} states, depth {depth}");
}

/// scripts/nightly.sh runs it, as it takes long.
#[test]
fn every_order_of_a_change_request_a_fault_and_a_lost_control_connection_ends_well() {
    let (states, depth) = explore(1, 1, 1);
    assert!(states > 10_000 && depth > 30, "{states} states, depth {depth}");
}

/// scripts/nightly.sh runs it, as it takes long, with `FERRITE_EXPLORE=all`, which adds the break
/// of the control connection.
#[test]
fn every_order_of_events_with_two_faults_ends_well() {
    let breaks = u8::from(std::env::var("FERRITE_EXPLORE").is_ok_and(|value| value == "all"));
    let (states, depth) = explore(2, breaks, 0);
    assert!(states > 1000 && depth > 20, "{states} states, depth {depth}");
}
