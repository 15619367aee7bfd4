//! Strangers who know a token: more of them than a process keeps, and some in the place of a peer
//! that is dialled. They say anything. However they do, no more of them are kept than may be, and
//! none of those who have shown nothing when there is no listener any more.

use super::world::address;
use crate::control::acceptor::{GRACE, MAX_CLIENTS};
use crate::control::event::{End, Event};
use crate::control::plane::ControlPlane;
use crate::control::{ConnId, Time};
use crate::frame::{Frame, Kind};
use crate::random::Random;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1);
const TOKEN: [u8; 16] = [1; 16];

pub(super) fn run(seed: u64) {
    let mut world = Strangers {
        plane: ControlPlane::new(LIMIT, seed),
        random: Random::new(seed),
        now: Time::ZERO,
        conns: Vec::new(),
        calls: Vec::new(),
    };
    world.plane.register(TOKEN);
    for _ in 0..300 {
        world.step();
        world.settle();
    }
    world.end();
}

struct Strangers {
    plane: ControlPlane,
    random: Random,
    now: Time,
    /// Control connections that stand, and those that are dialled.
    conns: Vec<ConnId>,
    calls: Vec<ConnId>,
}

impl Strangers {
    fn step(&mut self) {
        match self.random.below(8) {
            0 => {
                self.plane.open(self.now, address(8), TOKEN, [self.random.below(4) as u8; 16]);
            }
            1 => self.calls.drain(..).for_each(|conn| {
                self.plane.handle_connected(self.now, conn);
                self.conns.push(conn);
            }),
            2 if self.random.one_in(4) => self.crowd_comes(),
            2 => self.stranger_comes(),
            3 => self.now += GRACE,
            4 => self.stranger_goes(),
            _ => self.stranger_speaks(),
        }
        self.plane.handle_timeout(self.now);
    }

    fn crowd_comes(&mut self) {
        self.now += GRACE;
        (0..MAX_CLIENTS).for_each(|_| self.stranger_comes());
    }

    fn stranger_comes(&mut self) {
        if self.plane.make_room(self.now).is_ok() {
            let conn = self.plane.handle_client(self.now, address(9));
            self.conns.push(conn);
        }
    }

    fn one(&mut self) -> Option<ConnId> {
        let count = self.conns.len() as u64;
        (count > 0).then(|| self.conns[self.random.below(count) as usize])
    }

    fn stranger_goes(&mut self) {
        let Some(conn) = self.one() else { return };
        let end = if self.random.one_in(2) { End::Closed } else { End::Lost("it is cut".into()) };
        self.plane.handle_end(self.now, conn, end);
        self.conns.retain(|one| *one != conn);
    }

    /// Often a hello or a resume that may be right, and then anything; now and then no frame at
    /// all.
    fn stranger_speaks(&mut self) {
        let Some(conn) = self.one() else { return };
        if self.random.one_in(16) {
            return self.plane.handle_bytes(
                self.now,
                conn,
                b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            );
        }
        let any = Kind::ALL[self.random.below(Kind::ALL.len() as u64) as usize];
        let kind = [Kind::Hello, any, any][self.random.below(3) as usize];
        let secret = [self.random.below(4) as u8; 16];
        let body = [&TOKEN[..], &[0; 4], &[0; 16]].concat();
        let length = [16, 20, 36][self.random.below(3) as usize];
        self.plane.handle_bytes(
            self.now,
            conn,
            &Frame { kind, secret, body: body[..length].to_vec() }.emit(),
        );
    }

    /// Does what the plane wants done.
    fn settle(&mut self) {
        while let Some(event) = self.plane.poll_event() {
            match event {
                Event::Dial { conn, .. } => self.calls.push(conn),
                Event::Close { conn, .. } => {
                    self.conns.retain(|one| *one != conn);
                    self.calls.retain(|one| *one != conn);
                }
                Event::Peer { .. } | Event::Log { .. } => {}
            }
        }
        while self.plane.fetch(&TOKEN).is_some() {}
        while let Some(conn) = self.plane.poll_dirty() {
            let sent = self.plane.poll_transmit(conn).len();
            self.plane.handle_transmitted(conn, sent);
        }
        assert_eq!(
            self.plane.counts()[0],
            self.conns.len() + self.calls.len(),
            "control connections"
        );
        assert!(self.plane.unauthenticated_count() <= MAX_CLIENTS);
    }

    fn end(mut self) {
        self.plane.deregister(&TOKEN);
        self.settle();
        assert_eq!(self.plane.unauthenticated_count(), 0);
    }
}
