//! Two processes, and what befalls them.

use super::app::{Acceptor, Connector, Established, Known, Pair};
use super::network::{Network, REFUSED, Side, Wire};
use crate::control::acceptor::MAX_PENDING;
use crate::control::event::{End, Event, Level, PeerChange};
use crate::control::plane::ControlPlane;
use crate::control::stream::MAX_INBOX;
use crate::control::{ConnId, StreamId, Time};
use crate::frame::{ALL_CONNECTIONS, Frame, Kind, MAX_MISSING_LIST_BYTES};
use crate::handle::Secret;
use crate::random::Random;
use std::net::SocketAddr;
use std::time::Duration;

/// Longer than any firewall refuses: so long an end that has replied waits for its peer's commit.
const FIRST_FRAME_LIMIT: Duration = Duration::from_secs(300);
/// Steps after which a schedule without faults must have come to rest.
const CALM_STEPS: usize = 5000;

pub(super) struct World {
    pub(super) random: Random,
    pub(super) now: Time,
    pub(super) planes: [ControlPlane; 2],
    pub(super) network: Network,
    pub(super) pairs: Vec<Pair>,
    /// Connections of nobody in particular, by the process that they came to.
    pub(super) hostile: Vec<(usize, ConnId)>,
    pub(super) next_secret: u64,
    pub(super) refusals_left: [u32; 2],
    without_port: [bool; 2],
    pub(super) warnings: [usize; 2],
    pub(super) is_calm: bool,
    calm_since: Time,
    has_passed_long: bool,
}

pub(super) fn address(process: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, process as u8 + 1], 7))
}

impl World {
    /// `seed` is that of the planes' own random numbers.
    pub(super) fn new(seed: u64, mut random: Random) -> Self {
        let mut planes = [0, 1].map(|i| ControlPlane::new(FIRST_FRAME_LIMIT, seed ^ i));
        // An earlier release does not tell its port, nor does a process that gets none.
        let without_port = [0, 1].map(|_| random.one_in(5));
        for (process, plane) in planes.iter_mut().enumerate() {
            plane.set_port(Some(address(process)).filter(|_| !without_port[process]));
        }
        let pairs = (0..1 + random.below(5) as u8).map(|i| Pair {
            dialler: random.below(2) as usize,
            token: [i + 1; 16],
            connector: Connector::Idle,
            acceptor: Acceptor::default(),
            has_closed: [false; 2],
        });
        let pairs: Vec<_> = pairs.collect();
        let mut world = Self {
            random,
            now: Duration::from_secs(1),
            planes,
            network: Network::default(),
            pairs,
            hostile: Vec::new(),
            next_secret: 0,
            refusals_left: [2; 2],
            without_port,
            warnings: [0; 2],
            is_calm: false,
            calm_since: Time::ZERO,
            has_passed_long: false,
        };
        for pair in &world.pairs {
            world.planes[1 - pair.dialler].register(pair.token);
        }
        world
    }

    pub(super) fn run(mut self) {
        let steps = self.random.below(400);
        let dies_at = if self.random.one_in(4) { self.random.below(steps + 1) } else { u64::MAX };
        for step in 0..steps {
            if step == dies_at {
                let victim = self.random.below(2) as usize;
                self.network.kill(victim, self.now, &mut self.random);
            }
            self.act();
            self.settle();
        }
        (self.is_calm, self.calm_since) = (true, self.now);
        self.hostile_goes();
        self.come_to_rest();
        self.check();
        self.close_all();
        self.come_to_rest();
        for process in (0..2).filter(|p| !self.network.is_dead[*p]) {
            let plane = &self.planes[process];
            assert_eq!(
                plane.counts(),
                [0; 4],
                "something is kept by process {process}: {plane:?} {:?}",
                self.network
            );
            assert!(!self.planes[process].is_port_needed());
        }
    }

    /// Something happens.
    fn act(&mut self) {
        let pair = self.random.below(self.pairs.len() as u64) as usize;
        let process = self.random.below(2) as usize;
        match self.random.below(70) {
            0..=17 => self.deliver(),
            18..=39 => self.keep_queue_pairs(pair, process),
            40..=49 => {
                let pause = Duration::from_millis(self.random.below(60));
                self.advance(pause);
            }
            50..=52 if !self.network.wires.is_empty() => {
                let wire = self.random.below(self.network.wires.len() as u64) as usize;
                self.network.lose(wire, self.now, &mut self.random);
            }
            53 => {
                let dialler = self.pairs[pair].dialler;
                self.pairs[pair].connector.abandon(&mut self.planes[dialler], self.now);
            }
            54 if self.random.one_in(3) => self.close(pair, process),
            54 => self.stop(),
            55 => {
                let count = self.refusals_left[process].min(self.random.below(3) as u32);
                self.refusals_left[process] -= count;
                self.network.refuses[process] += count;
            }
            56 => self.hostile_comes(process),
            57 => self.hostile_sends(),
            58 => {
                let far = 1 - self.pairs[pair].dialler;
                self.pairs[pair].acceptor.sweep(&mut self.planes[far], self.now);
            }
            59 if self.random.one_in(2) => self.close_listener(pair),
            59 => self.pass_long(),
            60 if self.random.one_in(4) => self.reload_firewall(pair, process),
            60..=69 => self.send_recovery_frame(pair, process),
            _ => {}
        }
    }

    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
        for process in 0..2 {
            self.give_signs_of_life(process);

            if !self.network.is_dead[process] {
                self.planes[process].handle_timeout(self.now);
            }
        }
    }

    /// Once: an end that dials closes, and then there is a pause that is longer than it dials for
    /// its goodbye, and shorter than a client has for its first frame.
    fn pass_long(&mut self) {
        if !std::mem::replace(&mut self.has_passed_long, true) {
            let pair = self.random.below(self.pairs.len() as u64) as usize;
            self.close(pair, self.pairs[pair].dialler);
            self.advance(Duration::from_secs(40));
        }
    }

    /// NCCL asks one end.
    fn keep_queue_pairs(&mut self, pair: usize, process: usize) {
        if self.network.is_dead[process] {
            return;
        }
        let secret = self.secret();
        let (pair, plane) = (&mut self.pairs[pair], &mut self.planes[process]);
        let is_vain = self.network.is_dead[1 - process] || pair.has_closed[1 - process];
        if pair.dialler == process && is_vain && self.is_calm {
            pair.connector.abandon(plane, self.now);
        } else if pair.dialler == process {
            pair.connector.advance(plane, self.now, address(1 - process), pair.token, secret);
        } else {
            pair.acceptor.advance(plane, self.now, pair.token);
        }
    }

    fn secret(&mut self) -> Secret {
        self.next_secret += 1;
        let mut secret = [0xaa; 16];
        secret[..8].copy_from_slice(&self.next_secret.to_le_bytes());
        secret
    }

    /// Some bytes, or an end, or a new connection, come through.
    pub(super) fn deliver(&mut self) {
        if self.network.wires.is_empty() {
            return;
        }
        let index = self.random.below(self.network.wires.len() as u64) as usize;
        if self.network.wires[index].is_waiting() {
            return self.accept_clients(index);
        }
        let process = self.random.below(2) as usize;
        self.deliver_to(index, process);
    }

    /// Whether there was anything.
    fn deliver_to(&mut self, index: usize, process: usize) -> bool {
        let wire = &mut self.network.wires[index];
        let Some(conn) = wire.sides[process].conn.filter(|_| wire.is_up) else { return false };
        let there = wire.sides[process].incoming.len();
        if there > 0 {
            let most =
                if self.is_calm { 4096 } else { [1, 40, 300, 4096][self.random.below(4) as usize] };
            let bytes: Vec<u8> = wire.sides[process].incoming.drain(..there.min(most)).collect();
            self.planes[process].handle_bytes(self.now, conn, &bytes);
            return true;
        }
        let Some(end) = self.network.end_of(index, process, self.now) else { return false };
        self.network.wires[index].sides[process].conn = None;
        self.network.ended[process] = self.now;
        self.planes[process].handle_end(self.now, conn, end);
        true
    }

    /// The kernel at the far end answers somebody who dials.
    pub(super) fn accept_clients(&mut self, index: usize) {
        let wire = &self.network.wires[index];
        let (near, far) = (wire.dialler, 1 - wire.dialler);
        let Some(conn) = wire.sides[near].conn else { return };
        if self.network.is_dead[far] && self.random.one_in(3) {
            let refuse = Frame::text(Kind::Refuse, ALL_CONNECTIONS, "who are you?").emit();
            let says: &[u8] =
                if self.random.one_in(2) { b"HTTP/1.1 400 Bad Request\r\n\r\n" } else { &refuse };
            self.network.let_a_stranger_in(index, says);
            return self.planes[near].handle_connected(self.now, conn);
        }
        let is_rejected = self.now < self.network.rejects_until[far];
        let by_mistake = self.network.refuses[far];
        self.network.refuses[far] = by_mistake.saturating_sub(1);
        let wire = &mut self.network.wires[index];
        if self.network.is_dead[far]
            || !self.planes[far].is_port_needed()
            || is_rejected
            || by_mistake > 0
        {
            wire.sides[near].conn = None;
            return self.planes[near].handle_end(self.now, conn, End::Unreachable(REFUSED));
        }
        if self.planes[far].make_room(self.now).is_ok() {
            wire.is_up = true;
            wire.sides[far].conn = Some(self.planes[far].handle_client(self.now, address(2)));
            self.planes[near].handle_connected(self.now, conn);
        }
    }

    /// Does what the planes want done; checks what has to hold at all times.
    pub(super) fn settle(&mut self) {
        for process in 0..2 {
            if self.network.is_dead[process] {
                continue;
            }
            while let Some(event) = self.planes[process].poll_event() {
                match event {
                    Event::Dial { conn, address: to } => {
                        assert_eq!(to, address(1 - process));
                        self.network.dial(process, conn);
                    }
                    Event::Close { conn, last } => self.network.close(process, conn, last),
                    Event::Peer { stream, change } => self.tell(process, stream, &change),
                    Event::Log { level: Level::Warn, .. } => self.warnings[process] += 1,
                    Event::Log { .. } => {}
                }
            }
            while self.planes[process].poll_dirty().is_some() {}
            self.transmit(process);
            let [incoming, outgoing, inbox] = self.planes[process].most_kept();
            assert!(
                incoming < 32 + MAX_MISSING_LIST_BYTES
                    && outgoing < 1 << 17
                    && inbox <= MAX_INBOX + 1
            );
            assert!(self.planes[process].counts()[3] <= MAX_PENDING);
        }
        self.network.sweep();
    }

    fn transmit(&mut self, process: usize) {
        for wire in &mut self.network.wires {
            let Some(conn) = wire.sides[process].conn.filter(|_| wire.is_up) else { continue };
            let bytes = self.planes[process].poll_transmit(conn);
            let count = if self.is_calm {
                bytes.len()
            } else {
                self.random.below(bytes.len() as u64 + 1) as usize
            };
            if !wire.is_cut {
                wire.sides[1 - process].incoming.extend(&bytes[..count]);
            }
            self.planes[process].handle_transmitted(conn, count);
        }
    }

    fn tell(&mut self, process: usize, stream: StreamId, change: &PeerChange) {
        let is_dead = self.network.is_dead[1 - process];
        for pair in &mut self.pairs {
            let has_closed = pair.has_closed[1 - process];
            if let Some(done) = pair.end(process).filter(|done| done.stream == stream) {
                let is_end = matches!(
                    change,
                    PeerChange::Closed(_) | PeerChange::Unknown(_) | PeerChange::Broken(_)
                );
                assert!(
                    !is_end || has_closed || is_dead,
                    "{change:?}, while the peer lives and has not closed"
                );
                done.handle_change(self.now, change);
            }
        }
        self.give_signs_of_life(process);
    }

    /// Nothing goes wrong any more, until nothing happens.
    fn come_to_rest(&mut self) {
        for _ in 0..CALM_STEPS {
            let before = self.now;
            let mut has_moved = false;
            for index in 0..self.network.wires.len() {
                match self.network.wires[index].is_waiting() {
                    true => self.accept_clients(index),
                    false => {
                        has_moved |= self.deliver_to(index, 0);
                        has_moved |= self.deliver_to(index, 1);
                    }
                }
            }
            for pair in 0..self.pairs.len() {
                self.keep_queue_pairs(pair, 0);
                self.keep_queue_pairs(pair, 1);
                let far = 1 - self.pairs[pair].dialler;
                if !self.network.is_dead[far] {
                    self.pairs[pair].acceptor.sweep(&mut self.planes[far], self.now);
                }
            }
            self.settle();
            let is_due = |side: &Side| {
                !side.incoming.is_empty() || side.is_finished && side.lost_at.is_none()
            };
            let has_more =
                |wire: &Wire| wire.sides.iter().any(|side| side.conn.is_some() && is_due(side));
            // Who sets up a connection dials again at once.
            if self.network.rejects_until.iter().any(|until| *until > self.now) {
                self.advance(Duration::from_millis(200));
                self.settle();
            }
            if has_moved
                || self
                    .network
                    .wires
                    .iter()
                    .any(|wire| wire.is_waiting() || wire.is_up && has_more(wire))
            {
                continue;
            }
            let lost =
                self.network.wires.iter().flat_map(|w| &w.sides).filter(|side| side.conn.is_some());
            let due = lost.filter_map(|side| side.lost_at).chain(
                (0..2)
                    .filter(|p| !self.network.is_dead[*p])
                    .filter_map(|p| self.planes[p].poll_timeout()),
            );
            match due.min() {
                Some(due) => self.advance(due.saturating_sub(before)),
                None if self.is_unfinished() => self.advance(Duration::from_millis(20)),
                None => return,
            }
            self.settle();
        }
        panic!("no rest at {:?}: {:?}", self.now, self.planes);
    }

    /// Whether there is a connection that both ends want and do not have.
    fn is_unfinished(&mut self) -> bool {
        let all_live = self.network.is_dead == [false; 2];
        self.pairs.iter_mut().any(|pair| {
            let is_done = pair.connector.established().is_some() && pair.acceptor.done.is_some();
            all_live && pair.has_closed == [false; 2] && !pair.acceptor.is_closed && !is_done
        })
    }

    fn check(&mut self) {
        for pair in &mut self.pairs {
            let (near, far) = (pair.dialler, 1 - pair.dialler);
            let [near_died, far_died] = [near, far].map(|process| self.network.is_dead[process]);
            let what = format!("{:?} {:?} {:?}", pair.connector, pair.acceptor, pair.has_closed);
            let is_reported =
                |end: &Established| matches!(end.known, Known::Closed | Known::Broken);
            if !near_died && let Some(end) = pair.connector.established() {
                assert_eq!(is_reported(end), far_died || pair.has_closed[far], "{what}");
            }
            if near_died || far_died {
                if !far_died && let Some(end) = &pair.acceptor.done {
                    let is_called = self.planes[far].has_address(end.stream) || is_reported(end);
                    assert!(end.known != Known::Open && (is_reported(end) || !is_called), "{what}");
                }
                self.network.check_reported(pair, self.calm_since, &self.without_port);
                continue;
            }
            match (pair.connector.established(), &pair.acceptor.done) {
                (Some(near), Some(far)) => {
                    assert_eq!(
                        (near.secret, near.known, far.known),
                        (far.secret, Known::Open, Known::Open),
                        "{what}"
                    );
                    let carried =
                        self.planes[pair.dialler].conn_of(near.stream).expect("it is open");
                    let wire = self.network.of(pair.dialler, carried).expect("it stands").number;
                    let is_received = near.order.was_received_by(&far.order, wire)
                        && far.order.was_received_by(&near.order, wire);
                    assert!(is_received, "control connection {wire}: {what}");
                }
                (None, Some(far)) => {
                    assert!(pair.has_closed[near] && far.known != Known::Open, "{what}")
                }
                (Some(_), None) => assert!(pair.has_closed[far], "{what}"),
                (None, None) => assert!(pair.has_closed != [false; 2], "{what}"),
            }
        }
        assert!(self.warnings.iter().all(|count| *count <= 3), "{:?} warnings", self.warnings);
    }
}
