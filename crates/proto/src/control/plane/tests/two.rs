//! Two control planes that talk to each other.

use crate::control::event::{End, Event, Level, PeerChange, Received};
use crate::control::plane::ControlPlane;
use crate::control::{ConnId, StreamId, Time};
use crate::frame::Kind;
use crate::handle::{Secret, Token};
use std::net::SocketAddr;
use std::time::Duration;

pub(super) fn here() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 7))
}

/// A process that dials, one that listens, and the connection between them that stands.
pub(super) struct Two {
    pub(super) near: ControlPlane,
    pub(super) far: ControlPlane,
    pub(super) now: Time,
    pub(super) wire: Option<(ConnId, ConnId)>,
    pub(super) changes: [Vec<(StreamId, PeerChange)>; 2],
    pub(super) log: [Vec<(Level, String)>; 2],
}

impl Two {
    pub(super) fn new(tokens: &[Token]) -> Self {
        let [near, far] = [1, 2].map(|seed| ControlPlane::new(Duration::from_secs(30), seed));
        let mut two = Self {
            near,
            far,
            now: Duration::from_secs(1),
            wire: None,
            changes: Default::default(),
            log: Default::default(),
        };
        tokens.iter().for_each(|token| two.far.register(*token));
        two
    }

    /// Notes what the planes say; the connection that the near one dials, if it does.
    pub(super) fn events(&mut self) -> Option<ConnId> {
        let (mut dialled, mut closed) = (None, None);
        for (side, plane) in [&mut self.near, &mut self.far].into_iter().enumerate() {
            while let Some(event) = plane.poll_event() {
                match event {
                    Event::Dial { conn, .. } => {
                        assert!(dialled.replace(conn).is_none(), "it dials twice")
                    }
                    Event::Close { conn, last } => {
                        let wire = self.wire.take_if(|wire| [wire.0, wire.1][side] == conn);
                        closed = wire.map(|wire| (side, wire, last)).or(closed);
                    }
                    Event::Peer { stream, change } => self.changes[side].push((stream, change)),
                    Event::Log { level, text } => self.log[side].push((level, text)),
                }
            }
        }
        if let Some((side, wire, last)) = closed {
            // What was said last comes before the end.
            let (other, conn) =
                if side == 0 { (&mut self.far, wire.1) } else { (&mut self.near, wire.0) };
            other.handle_bytes(self.now, conn, &last);
            other.handle_end(self.now, conn, End::Closed);
            dialled = self.events().or(dialled);
        }
        dialled
    }

    /// The connection that is dialled comes about.
    pub(super) fn connect(&mut self) {
        let conn = self.events().expect("it dials");
        let client = self.far.handle_client(self.now, SocketAddr::from(([10, 0, 0, 2], 99)));
        self.near.handle_connected(self.now, conn);
        self.wire = Some((conn, client));
    }

    /// The bytes of each go to the other, until there are none.
    pub(super) fn pass(&mut self) {
        while let Some((near, far)) = self.wire {
            let (out, back) =
                (self.near.poll_transmit(near).to_vec(), self.far.poll_transmit(far).to_vec());
            if out.is_empty() && back.is_empty() {
                break;
            }
            self.near.handle_transmitted(near, out.len());
            self.far.handle_transmitted(far, back.len());
            self.far.handle_bytes(self.now, far, &out);
            self.near.handle_bytes(self.now, near, &back);
            self.events();
        }
        self.events();
    }

    /// Both ends of a stream with this secret, up to the reply.
    pub(super) fn replied(&mut self, token: Token, secret: Secret) -> (StreamId, StreamId) {
        let near = self.near.open(self.now, here(), token, secret);
        if self.wire.is_none() {
            self.connect();
        }
        self.near.send(near, Kind::Hello, token.to_vec());
        self.pass();
        let (far, _) = self.far.fetch(&token).expect("it has come");
        assert_eq!(kind(self.far.poll_received(far)), Some(Kind::Hello));
        self.far.send(far, Kind::Reply, Vec::new());
        self.pass();
        assert_eq!(kind(self.near.poll_received(near)), Some(Kind::Reply));
        (near, far)
    }

    pub(super) fn established(&mut self, token: Token, secret: Secret) -> (StreamId, StreamId) {
        let (near, far) = self.replied(token, secret);
        self.near.send(near, Kind::Commit, Vec::new());
        self.near.establish(self.now, near, true);
        self.pass();
        assert_eq!(kind(self.far.poll_received(far)), Some(Kind::Commit));
        self.far.establish(self.now, far, true);
        (near, far)
    }

    /// Both ends hear that the connection is lost.
    pub(super) fn lose(&mut self) {
        let (near, far) = self.wire.take().expect("it stands");
        self.far.handle_end(self.now, far, End::Lost("a test".into()));
        self.near.handle_end(self.now, near, End::Lost("a test".into()));
        self.events();
    }

    /// The time comes when the near one dials again, and it comes through.
    pub(super) fn dial_again(&mut self) {
        self.now = self.near.poll_timeout().expect("it will dial");
        self.near.handle_timeout(self.now);
        self.connect();
        self.pass();
    }

    pub(super) fn changes(&mut self, side: usize) -> Vec<(StreamId, PeerChange)> {
        std::mem::take(&mut self.changes[side])
    }

    pub(super) fn warnings(&self, side: usize) -> Vec<&str> {
        self.log[side]
            .iter()
            .filter(|(level, _)| *level == Level::Warn)
            .map(|(_, text)| text.as_str())
            .collect()
    }
}

pub(super) fn kind(heard: Received) -> Option<Kind> {
    if let Received::Frame(frame) = heard { Some(frame.kind) } else { None }
}
