//! All control connections of a process, and what its RDMA connections receive over them.
//!
//! | file | what it does |
//! |---|---|
//! | here | what the owners of streams ask for |
//! | `sockets` | the driver's input: its sockets and the time |
//! | `frames` | where a frame goes |
//! | `ends` | what becomes of streams when their control connection ends, and how they come to another one |
//! | `requests` | how an end that does not dial asks the peer to |
//! | `life` | whether a peer that does not answer is dead |

mod ends;
mod frames;
mod life;
mod requests;
mod sockets;

use super::acceptor::ControlAcceptor;
use super::conn::{ControlConn, Stage};
use super::event::{End, Event, Level, PeerChange, Received};
use super::losses::Losses;
use super::pool::ControlPool;
use super::stream::{Phase, Role, Stream};
use super::{ConnId, StreamId, Time};
use crate::frame::{Frame, Kind};
use crate::handle::{Secret, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// How long the peer of a stream that this end has closed without a control connection is dialled, for the Goodbye.
pub const FAREWELL: Duration = Duration::from_secs(30);

/// The state machine of all control connections of a process.
///
/// Its methods are of these kinds. All but those of the last may change anything:
/// - what the owners of streams ask for: `open`, `fetch`, `send`, `establish`, `fail`, `close`, and of listeners: `register`, `deregister`;
/// - what the driver has to hand in: `handle_*`, of its sockets and of the time;
/// - what the driver has to do after each of these: [`Self::poll_event`] until it returns `None`, then the bytes of each connection that
///   [`Self::poll_dirty`] names, and at [`Self::poll_timeout`] [`Self::handle_timeout`];
/// - how a stream stands, for its owner: `poll_connected`, `poll_received`, `is_over`.
#[derive(Debug)]
pub struct ControlPlane {
    conns: BTreeMap<ConnId, ControlConn>,
    streams: BTreeMap<StreamId, Stream>,
    pool: ControlPool,
    acceptor: ControlAcceptor,
    /// Streams for which this process dials.
    dialled: BTreeMap<Secret, StreamId>,
    /// Where this process is called, if it is.
    port: Option<SocketAddr>,
    /// Streams that are not kept for longer.
    expiring: BTreeSet<(Time, StreamId)>,
    losses: Losses,
    events: VecDeque<Event>,
    /// The connection whose frames are being handled: others of its streams may come next.
    reading: Option<ConnId>,
    /// Connections that may have something to send.
    dirty: BTreeSet<ConnId>,
    next: u64,
    random: u64,
    /// The limit for a client's first frame, and for a peer that was lost before it was accepted to resume.
    first_frame_limit: Duration,
}

impl ControlPlane {
    /// No connection. `first_frame_limit` is the time that a client has for its first frame; `seed` spreads the attempts of many processes.
    pub fn new(first_frame_limit: Duration, seed: u64) -> Self {
        Self {
            conns: BTreeMap::new(),
            streams: BTreeMap::new(),
            pool: ControlPool::default(),
            acceptor: ControlAcceptor::default(),
            dialled: BTreeMap::new(),
            port: None,
            expiring: BTreeSet::new(),
            losses: Losses::default(),
            events: VecDeque::new(),
            reading: None,
            dirty: BTreeSet::new(),
            next: 1,
            random: seed,
            first_frame_limit,
        }
    }

    /// A stream to the listener at `address` that knows `token`, over the control connection to its process, if there is one;
    /// else that process is dialled. `secret` is made up for this one attempt.
    pub fn open(&mut self, now: Time, address: SocketAddr, token: Token, secret: Secret) -> StreamId {
        let conn = self.conn_to(now, address);
        let id = self.add_stream(Stream::new(Role::Dials, token, secret, address, conn));
        self.dialled.insert(secret, id);
        id
    }

    /// Whether the control connection of a stream that is being set up has come about.
    ///
    /// # Errors
    /// It has not, for this errno.
    pub fn poll_connected(&self, id: StreamId) -> Result<bool, i32> {
        let Some(stream) = self.streams.get(&id) else { return Ok(true) };
        match (stream.end(), stream.conn.and_then(|conn| self.conns.get(&conn))) {
            (Some(End::Unreachable(errno)), _) => Err(*errno),
            (Some(_), _) | (None, None) => Ok(true),
            (None, Some(conn)) => Ok(conn.stage != Stage::Dialling),
        }
    }

    /// The next client for the listener that knows `token`, and its address.
    pub fn fetch(&mut self, token: &Token) -> Option<(StreamId, SocketAddr)> {
        let id = self.acceptor.fetch(token)?;
        self.streams.get(&id).map(|stream| (id, stream.peer))
    }

    /// Queues a frame of `stream`.
    pub fn send(&mut self, id: StreamId, kind: Kind, body: Vec<u8>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        // After a refusal the peer expects no further frame.
        stream.is_known = kind != Kind::Refuse;
        stream.has_replied |= kind == Kind::Reply;
        let (conn, frame) = (stream.conn, Frame { kind, secret: stream.secret, body });
        if let Some(conn) = conn {
            if kind == Kind::Hello {
                self.tell_port(conn);
            }
            self.transmit(conn, &frame);
        }
    }

    /// What the owner of a stream that is being set up receives next.
    pub fn poll_received(&mut self, id: StreamId) -> Received {
        self.streams.get_mut(&id).map_or(Received::End(End::Closed), Stream::poll_received)
    }

    /// Whether nothing more is to be expected of a stream that is being set up: its control connection has ended or the peer
    /// has sent a Goodbye, and it has not committed before.
    pub fn is_over(&self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get(&id) else { return true };
        (stream.end().is_some() || stream.has_farewell()) && !stream.is_committed()
    }

    /// The RDMA connection is there: from now on its owner receives the peer's end as [`Event::Peer`], and the peer's frames
    /// of recovery as well, if it `receives_recovery`. What has come before is given at once, in order.
    pub fn establish(&mut self, now: Time, id: StreamId, receives_recovery: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        (stream.phase, stream.receives_recovery) = (Phase::Established, receives_recovery);
        let (secret, conn) = (stream.secret, stream.conn);
        if let Some(kept) = stream.kept_until.take() {
            self.expiring.remove(&(kept, id));
        }
        if let Some(found) = conn.and_then(|conn| self.conns.get_mut(&conn)) {
            found.handle_established(&secret);
        }
        while let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.phase == Phase::Established) {
            match stream.poll_received() {
                Received::Frame(frame) => self.handle_established_frame(id, frame),
                Received::End(end) => return self.handle_established_end(now, id, &end),
                // It was accepted while its control connection is lost.
                Received::Nothing if conn.is_none() => {
                    self.notify(id, PeerChange::Lost("lost before it was accepted".into()));
                    return self.wait_for_another(now, id);
                }
                Received::Nothing => return,
            }
        }
    }

    /// This end of an established stream has failed, for `reason`: the peer is sent a Goodbye, now or once there is a control
    /// connection again.
    pub fn fail(&mut self, id: StreamId, reason: &str) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.conn.is_none() && stream.phase == Phase::Established {
            stream.failure.get_or_insert_with(|| reason.to_owned());
        }
        self.send_goodbye(id, reason);
    }

    /// The stream's owner has dropped it. The peer is sent a Goodbye, unless the peer's came first.
    pub fn close(&mut self, now: Time, id: StreamId) {
        self.send_goodbye(id, "");
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let is_waiting = self.pool.get(&stream.peer).is_some_and(|peer| peer.waiting.contains(&id));
        if stream.phase == Phase::Established && stream.role == Role::Dials && is_waiting {
            stream.phase = Phase::Closing(stream.failure.take().unwrap_or_default());
            stream.kept_until = Some(now + FAREWELL);
            self.expiring.insert((now + FAREWELL, id));
            return;
        }
        self.forget(id);
    }

    /// Whether so much waits to be sent on `conn` that nothing more is to be read from it.
    pub fn is_backlogged(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.backlog() >= conn.max_backlog())
    }

    /// Ends a stream with a goodbye, if it is on a control connection. Nothing more is received on it after that.
    fn send_goodbye(&mut self, id: StreamId, reason: &str) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(conn) = stream.conn.take() else { return };
        if stream.phase == Phase::Established {
            stream.phase = Phase::Over;
        }
        let (secret, is_known, peer) = (stream.secret, stream.is_known, stream.peer);
        if std::mem::take(&mut stream.is_resuming) {
            self.note_answer(peer, false);
        }
        if is_known {
            self.transmit(conn, &Frame::text(Kind::Goodbye, secret, reason));
        }
        self.detach(conn, &secret);
    }

    /// Drops what is kept of a stream.
    fn forget(&mut self, id: StreamId) {
        self.stop_waiting(id);
        let Some(stream) = self.streams.remove(&id) else { return };
        if let Some(conn) = stream.conn {
            self.detach(conn, &stream.secret);
        }
        if let Some(kept) = stream.kept_until {
            self.expiring.remove(&(kept, id));
        }
        match stream.role {
            Role::Accepts => self.acceptor.forget(&stream.token, &stream.secret, id),
            Role::Dials => drop(self.dialled.remove(&stream.secret)),
        }
    }

    /// A stream needs no other control connection any more.
    fn stop_waiting(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (asks_over, address, secret) = (stream.asks_over.take(), stream.address(), stream.secret);
        if let Some(conn) = asks_over {
            if let Some(found) = self.conns.get_mut(&conn) {
                found.stop_asking(&secret);
            }
            self.close_if_idle(conn);
        }
        let Some(address) = address else { return };
        if self.pool.get(&address).is_some_and(|peer| peer.waiting.contains(&id)) {
            self.pool.update(address, |peer| peer.waiting.remove(&id));
            self.close_if_idle_to(address);
        }
    }

    fn add_stream(&mut self, stream: Stream) -> StreamId {
        let id = StreamId(self.number());
        if let Some(conn) = stream.conn.and_then(|conn| self.conns.get_mut(&conn)) {
            conn.attach(stream.secret, id);
        }
        self.streams.insert(id, stream);
        id
    }

    fn add_conn(&mut self, peer: SocketAddr, stage: Stage) -> ConnId {
        let id = ConnId(self.number());
        self.conns.insert(id, ControlConn::new(peer, stage));
        id
    }

    fn transmit(&mut self, conn: ConnId, frame: &Frame) {
        if let Some(found) = self.conns.get_mut(&conn) {
            found.send(frame);
            self.dirty.insert(conn);
        }
    }

    /// Takes a stream off its control connection, which goes with the last one.
    fn detach(&mut self, conn: ConnId, secret: &Secret) {
        if let Some(found) = self.conns.get_mut(&conn) {
            found.detach(secret);
            self.close_if_idle(conn);
        }
    }

    fn notify(&mut self, stream: StreamId, change: PeerChange) {
        self.events.push_back(Event::Peer { stream, change });
    }

    fn log(&mut self, level: Level, text: String) {
        self.events.push_back(Event::Log { level, text });
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// splitmix64.
    fn roll(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ z >> 31
    }
}

#[cfg(test)]
mod tests;
