//! All control connections of a process, and the input of its RDMA connections from them.

use crate::control::acceptor::ControlAcceptor;
use crate::control::conn::{ControlConn, MAX_BACKLOG, Stage};
use crate::control::event::{End, Event, Level, PeerChange, Received};
use crate::control::losses::Losses;
use crate::control::pool::ControlPool;
use crate::control::redial::{DIAL_LIMIT, DOUBT_LIMIT, LOOK_EVERY, LOOKS, LifeSigns, Silence};
use crate::control::refusal::Refusal;
use crate::control::stream::{Phase, Stream, StreamRole};
use crate::control::{ConnId, StreamId, Time};
use crate::explain::message::Answer;
use crate::frame::{ALL_CONNECTIONS, Frame, Kind};
use crate::handle::{Secret, Token};
use crate::handshake::{DialerAddress, Hello, Resume};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// How long to dial the peer of a stream that this end has closed without a control connection, to
/// send a Goodbye.
pub const FAREWELL: Duration = Duration::from_secs(30);
const CLOSED: &str = "closed without a goodbye";
/// `ECONNREFUSED` and `ETIMEDOUT`: this crate does not use libc.
const REFUSED: i32 = 111;
const TIMED_OUT: i32 = 110;
const DEAD: &str = "the peer's process has died";

/// The state machine of all control connections of a process.
///
/// Its methods come in these groups. All except the last may change anything:
/// - requests of the streams' owners: `open`, `fetch`, `send`, `establish`, `fail`, `close`; for
///   listeners: `register`, `deregister`;
/// - input from the driver: `handle_*`, for its sockets and the time;
/// - output for the driver after each of these: [`Self::poll_event`] until it returns `None`, then
///   the bytes of each connection from [`Self::poll_dirty`]; at [`Self::poll_timeout`] it calls
///   [`Self::handle_timeout`];
/// - the state of a stream, for its owner: `poll_connected`, `poll_received`, `is_over`.
#[derive(Debug)]
pub struct ControlPlane {
    conns: BTreeMap<ConnId, ControlConn>,
    streams: BTreeMap<StreamId, Stream>,
    pool: ControlPool,
    acceptor: ControlAcceptor,
    /// Streams for which this process dials.
    dialled: BTreeMap<Secret, StreamId>,
    /// Where this process accepts connections, if it does.
    port: Option<SocketAddr>,
    /// Streams with a deadline.
    expiring: BTreeSet<(Time, StreamId)>,
    losses: Losses,
    events: VecDeque<Event>,
    /// The connection whose frames are being handled: frames of its other streams may follow.
    reading: Option<ConnId>,
    /// Connections that may have output.
    dirty: BTreeSet<ConnId>,
    next: u64,
    random: u64,
    /// The time limit for a client's first frame, and for a peer that was lost before `accept` to
    /// resume.
    first_frame_limit: Duration,
}

// Requests of the streams' owners.
impl ControlPlane {
    /// A plane without connections. A client has `first_frame_limit` for its first frame; `seed`
    /// spreads the attempts of many processes.
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

    /// Opens a stream to the listener with `token` at `address`, over the control connection to its
    /// process. Dials the process if there is none. `secret` is generated for this attempt.
    pub fn open(
        &mut self,
        now: Time,
        address: SocketAddr,
        token: Token,
        secret: Secret,
    ) -> StreamId {
        let conn = self.conn_to(now, address);
        let id = self.add_stream(Stream::new(StreamRole::Dials, token, secret, address, conn));
        self.dialled.insert(secret, id);
        id
    }

    /// Whether the control connection of a stream in set-up is established.
    ///
    /// # Errors
    /// Establishing it failed with this errno.
    pub fn poll_connected(&self, id: StreamId) -> Result<bool, i32> {
        let Some(stream) = self.streams.get(&id) else { return Ok(true) };
        match (stream.end(), stream.conn.and_then(|conn| self.conns.get(&conn))) {
            (Some(End::Unreachable(errno)), _) => Err(*errno),
            (Some(_), _) | (None, None) => Ok(true),
            (None, Some(conn)) => Ok(conn.stage != Stage::Dialling),
        }
    }

    /// The next client for the listener with `token`, and its address.
    pub fn fetch(&mut self, token: &Token) -> Option<(StreamId, SocketAddr)> {
        let id = self.acceptor.fetch(token)?;
        self.streams.get(&id).map(|stream| (id, stream.peer))
    }

    /// Queues a frame of `stream`.
    pub fn send(&mut self, id: StreamId, kind: Kind, body: Vec<u8>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        // A refusal must be the last frame.
        stream.is_known = kind != Kind::Refuse;
        stream.has_replied |= kind == Kind::Reply;
        let (conn, frame) = (stream.conn, Frame { kind, secret: stream.secret, body });
        if let Some(conn) = conn {
            if kind == Kind::Hello {
                self.announce_port(conn);
            }
            self.transmit(conn, &frame);
        }
    }

    /// The next input for the owner of a stream in set-up.
    pub fn poll_received(&mut self, id: StreamId) -> Received {
        self.streams.get_mut(&id).map_or(Received::End(End::Closed), Stream::poll_received)
    }

    /// Whether nothing more can arrive for a stream in set-up: its control connection has ended or
    /// the peer has sent a Goodbye, without an earlier commit.
    pub fn is_over(&self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get(&id) else { return true };
        (stream.end().is_some() || stream.has_farewell()) && !stream.is_committed()
    }

    /// The RDMA connection is established: reports the peer's end to its owner as [`Event::Peer`]
    /// from now on, and the peer's frames of recovery if it `receives_recovery`. Delivers earlier
    /// input at once, in order.
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
        while let Some(stream) =
            self.streams.get_mut(&id).filter(|stream| stream.phase == Phase::Established)
        {
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

    /// This end of an established stream has failed, for `reason`: sends a Goodbye to the peer, now
    /// or once there is a control connection again.
    pub fn fail(&mut self, id: StreamId, reason: &str) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.conn.is_none() && stream.phase == Phase::Established {
            stream.failure.get_or_insert_with(|| reason.to_owned());
        }
        self.send_goodbye(id, reason);
    }

    /// The stream's owner has dropped it. Sends a Goodbye, unless the peer's came first.
    pub fn close(&mut self, now: Time, id: StreamId) {
        self.send_goodbye(id, "");
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let is_waiting = self.pool.get(&stream.peer).is_some_and(|peer| peer.waiting.contains(&id));
        if stream.phase == Phase::Established && stream.role == StreamRole::Dials && is_waiting {
            stream.phase = Phase::Closing(stream.failure.take().unwrap_or_default());
            stream.kept_until = Some(now + FAREWELL);
            self.expiring.insert((now + FAREWELL, id));
            return;
        }
        self.forget(id);
    }

    /// Whether the backlog of `conn` is so large that nothing more may be read from it.
    pub fn is_backlogged(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.backlog() >= conn.max_backlog())
    }

    /// Ends a stream with a Goodbye if it is on a control connection. It receives nothing after
    /// that.
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

    /// Removes the state of a stream.
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
            StreamRole::Accepts => self.acceptor.forget(&stream.token, &stream.secret, id),
            StreamRole::Dials => drop(self.dialled.remove(&stream.secret)),
        }
    }

    /// A stream needs no other control connection any more.
    fn stop_waiting(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (asks_over, address, secret) =
            (stream.asks_over.take(), stream.address(), stream.secret);
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

    /// Removes a stream from its control connection, which is closed with its last stream.
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

// The driver's input and output: its sockets and the time.
impl ControlPlane {
    /// The next task for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A control connection that may have output.
    pub fn poll_dirty(&mut self) -> Option<ConnId> {
        self.dirty.pop_first()
    }

    /// The bytes to send on `conn`.
    pub fn poll_transmit(&self, conn: ConnId) -> &[u8] {
        self.conns.get(&conn).map_or(&[], |conn| conn.poll_transmit())
    }

    /// The kernel has accepted the first `count` of them.
    pub fn handle_transmitted(&mut self, conn: ConnId, count: usize) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.handle_transmitted(count);
        }
    }

    /// A dialled connection is established.
    pub fn handle_connected(&mut self, now: Time, conn: ConnId) {
        let Some(found) = self.conns.get_mut(&conn).filter(|found| found.stage == Stage::Dialling)
        else {
            return;
        };
        found.stage = Stage::Dialled;
        let address = found.peer;
        self.dirty.insert(conn);
        self.pool.update(address, |peer| {
            peer.since = now;
            peer.is_dialling = false;
            peer.refusals.clear();
        });
        self.resume_all(address, conn);
        self.close_if_idle(conn);
    }

    /// Bytes have arrived on `conn`.
    pub fn handle_bytes(&mut self, now: Time, conn: ConnId, bytes: &[u8]) {
        if let Some(found) = self.conns.get_mut(&conn) {
            found.handle_bytes(bytes);
        }
        self.reading = Some(conn);
        self.handle_frames(now, conn);
        self.reading = None;
        self.close_if_idle(conn);
    }

    fn handle_frames(&mut self, now: Time, conn: ConnId) {
        loop {
            // The connection may be gone after any frame.
            let Some(found) = self.conns.get_mut(&conn) else { return };
            match found.poll_frame() {
                Ok(Some(frame)) => self.handle_frame(now, conn, frame),
                Ok(None) => return,
                Err(violation) => return self.handle_violation(now, conn, violation.text()),
            }
        }
    }

    /// A connection has ended, for reason `end`.
    pub fn handle_end(&mut self, now: Time, conn: ConnId, end: End) {
        let Some(found) = self.conns.get(&conn) else { return };
        if found.stage == Stage::Unauthenticated {
            let why = match end {
                End::Lost(why) => format!("its connection was lost: {why}"),
                _ => "it closed the connection".into(),
            };
            return self.dismiss(conn, &why);
        }
        self.end_conn(now, conn, end);
    }

    /// Makes room for another client, if necessary by closing the oldest unauthenticated one.
    ///
    /// # Errors
    /// There is no room before this time.
    pub fn make_room(&mut self, now: Time) -> Result<(), Time> {
        while let Some(oldest) = self.acceptor.poll_surplus(now)? {
            self.dismiss(oldest, "it sent nothing while others arrived");
        }
        Ok(())
    }

    /// A client at `peer` has connected to the port.
    pub fn handle_client(&mut self, now: Time, peer: SocketAddr) -> ConnId {
        let conn = self.add_conn(peer, Stage::Unauthenticated);
        self.acceptor.add_client(conn, now, now + self.first_frame_limit);
        conn
    }

    /// Keeps clients that present `token` for the listener that fetches them with it.
    pub fn register(&mut self, token: Token) {
        self.acceptor.register(token);
    }

    /// Removes the listener with `token`. Without listeners, unauthenticated clients need not wait.
    pub fn deregister(&mut self, token: &Token) {
        for stream in self.acceptor.deregister(token) {
            self.send_goodbye(stream, "");
            self.forget(stream);
        }
        if !self.acceptor.has_listeners() {
            for conn in self.acceptor.clients() {
                self.dismiss(conn, "there is no listener any more");
            }
        }
    }

    /// Whether there is a listener.
    pub fn has_listeners(&self) -> bool {
        self.acceptor.has_listeners()
    }

    /// Whether the port must stay open: there is a listener, or a connection that a peer may have
    /// to resume, or to ask for.
    pub fn is_port_needed(&self) -> bool {
        self.acceptor.has_listeners() || !self.streams.is_empty()
    }

    /// Sets where this process accepts connections; `None` for nowhere.
    pub fn set_port(&mut self, port: Option<SocketAddr>) {
        self.port = port;
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        let kept = self.expiring.first().map(|(until, _)| *until);
        [self.acceptor.poll_timeout(), self.pool.poll_timeout(), kept].into_iter().flatten().min()
    }

    /// A port of this machine has come up: redials lost control connections at once.
    pub fn handle_network_change(&mut self, now: Time) {
        self.pool.handle_network_change(now);
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(conn) = self.acceptor.poll_late(now) {
            // A peer that has sent nothing dials again; a peer with incomplete input gets the
            // reason.
            if self.conns.get(&conn).is_some_and(ControlConn::has_begun) {
                let why = "its first message is incomplete";
                self.transmit(conn, &Frame::text(Kind::Refuse, ALL_CONNECTIONS, why));
            }
            self.dismiss(conn, "it sent nothing");
        }
        while let Some(address) = self.pool.poll_due(now) {
            self.handle_due(now, address);
        }
        while let Some((until, id)) =
            self.expiring.first().copied().filter(|(until, _)| *until <= now)
        {
            self.expiring.remove(&(until, id));
            self.handle_expired(now, id);
        }
    }

    /// The deadline of a stream has passed.
    fn handle_expired(&mut self, now: Time, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.kept_until = None;
        match stream.phase {
            Phase::Closing(_) => self.forget(id),
            Phase::Established => self.judge_closed(now, id),
            // The peer has not come back; the listener drops it.
            _ => {
                let seconds = self.first_frame_limit.as_secs();
                stream.handle_end(End::Lost(format!(
                    "the peer has not come back within {seconds} s"
                )));
            }
        }
    }

    /// Closes an unauthenticated client, and logs the reason.
    fn dismiss(&mut self, conn: ConnId, why: &str) {
        self.acceptor.remove_client(conn);
        let Some(found) = self.conns.remove(&conn) else { return };
        self.log(Level::Info, format!("dismissed {}: {why}", found.peer));
        self.events.push_back(Event::Close { conn, last: found.into_outgoing() });
    }

    fn handle_violation(&mut self, now: Time, conn: ConnId, why: &str) {
        match self.conns.get(&conn).map(|found| found.stage) {
            Some(Stage::Unauthenticated) => {
                self.transmit(conn, &Frame::text(Kind::Refuse, ALL_CONNECTIONS, why));
                self.dismiss(conn, why);
            }
            Some(_) => self.end_conn(now, conn, End::Wrong(why.into())),
            None => {}
        }
    }

    /// The control connection that carries a stream.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn conn_of(&self, id: StreamId) -> Option<ConnId> {
        self.streams.get(&id).and_then(|stream| stream.conn)
    }

    /// Counts for a test: control connections, streams, peers, the most clients that wait for a
    /// listener.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn counts(&self) -> [usize; 4] {
        [self.conns.len(), self.streams.len(), self.pool.len(), self.acceptor.most_pending()]
    }

    /// Clients that have not shown yet that they know a listener or a connection.
    #[cfg(test)]
    pub(crate) fn unauthenticated_count(&self) -> usize {
        self.acceptor.clients().len()
    }

    /// The most bytes and frames that any control connection, and any stream, keeps.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn most_kept(&self) -> [usize; 3] {
        let incoming = self.conns.values().map(ControlConn::pending_bytes).max().unwrap_or(0);
        let outgoing = self.conns.values().map(ControlConn::backlog).max().unwrap_or(0);
        [incoming, outgoing, self.streams.values().map(Stream::inbox_len).max().unwrap_or(0)]
    }
}

// Dispatching frames.
impl ControlPlane {
    fn handle_frame(&mut self, now: Time, conn: ConnId, frame: Frame) {
        let Some(found) = self.conns.get_mut(&conn) else { return };
        let (stream, peer) = (found.stream(&frame.secret), found.peer);
        if found.is_dialled() && !std::mem::replace(&mut found.is_answered, true) {
            self.pool.update(peer, |peer| peer.doubted = None);
        }
        let Some(found) = self.conns.get(&conn) else { return };
        match (found.stage, frame.kind, stream) {
            // It precedes the frame that identifies the dialling process, and has no effect by
            // itself.
            (Stage::Unauthenticated | Stage::Accepted, Kind::Commit, None)
                if frame.secret == ALL_CONNECTIONS =>
            {
                self.note_caller(conn, &frame);
            }
            (Stage::Unauthenticated, _, _) => self.handle_first_frame(now, conn, frame),
            // Both ends of a stream may belong to one process, so check the direction before the
            // stream.
            (Stage::Accepted, Kind::Redial, _) => {
                if let Err(why) = self.handle_request(now, conn, &frame) {
                    self.refuse(conn, Kind::Redial, frame.secret, &why);
                }
            }
            (Stage::Dialled, Kind::Redial, _) => self.handle_request_answer(conn, &frame),
            (_, _, Some(id)) => self.deliver(now, conn, id, frame),
            (Stage::Accepted, Kind::Hello, None) => {
                let secret = frame.secret;
                if let Err(why) = self.handle_hello(conn, frame) {
                    self.refuse(conn, Kind::Refuse, secret, &why);
                }
            }
            (Stage::Accepted, Kind::Resume, None) => {
                if let Err(why) = self.resume(conn, &frame) {
                    self.refuse(conn, Kind::Refuse, frame.secret, &why);
                }
            }
            // It is for this process, not for one of its connections.
            (Stage::Dialled, Kind::Refuse, None) if frame.secret == ALL_CONNECTIONS => {
                self.end_conn(now, conn, End::Refused(frame.body_text()));
            }
            // The last frames of a connection that no longer exists, or was abandoned.
            (_, kind, None) => {
                let text = format!(
                    "a message ({kind}) from {} for no connection of this process",
                    found.peer
                );
                self.log(Level::Debug, text);
            }
        }
    }

    /// The first frame of an unauthenticated client shows whether it knows a listener's token or a
    /// connection's secret.
    fn handle_first_frame(&mut self, now: Time, conn: ConnId, frame: Frame) {
        let (kind, secret) = (frame.kind, frame.secret);
        let Some(found) = self.conns.get_mut(&conn) else { return };
        found.stage = Stage::Accepted;
        let admitted = match kind {
            Kind::Hello => self.handle_hello(conn, frame),
            Kind::Resume => self.resume(conn, &frame),
            Kind::Redial => self.handle_request(now, conn, &frame),
            _ => Err(Refusal::Invalid(format!("an unexpected message ({kind})"))),
        };
        match admitted {
            Ok(()) => self.acceptor.remove_client(conn),
            // One of its connections is gone. Others may follow on that control connection, within
            // the caller's deadline.
            Err(why @ Refusal::UnknownConnection) => {
                if let Some(found) = self.conns.get_mut(&conn) {
                    found.stage = Stage::Unauthenticated;
                }
                self.refuse(
                    conn,
                    if kind == Kind::Redial { kind } else { Kind::Refuse },
                    secret,
                    &why,
                );
            }
            Err(why) => {
                // Refuses only this one: other connections may follow on that control connection,
                // and dial again when it ends.
                let why = why.to_string();
                self.transmit(conn, &Frame::text(Kind::Refuse, secret, &why));
                self.dismiss(conn, &why);
            }
        }
    }

    /// Handles a hello: leads the peer to its listener.
    fn handle_hello(&mut self, conn: ConnId, hello: Frame) -> Result<(), Refusal> {
        let token = Hello::token_of(&hello.body)?;
        self.acceptor.check(&token, &hello.secret)?;
        let Some(found) = self.conns.get(&conn) else { return Ok(()) };
        let secret = hello.secret;
        let mut stream = Stream::new(StreamRole::Accepts, token, secret, found.peer, conn);
        stream.caller = found.caller;
        let _ = stream.push(hello);
        let id = self.add_stream(stream);
        self.acceptor.admit(&token, secret, id);
        Ok(())
    }

    /// Resumes a stream of another control connection here, if the peer knows its secret and its
    /// listener's token. The request shows that the peer has committed, whether or not the commit
    /// has arrived.
    fn resume(&mut self, conn: ConnId, frame: &Frame) -> Result<(), Refusal> {
        let Resume { token, attempt } = Resume::parse(&frame.body)?;
        let id = self.acceptor.stream(&frame.secret).ok_or(Refusal::UnknownConnection)?;
        let stream = self.streams.get_mut(&id).ok_or(Refusal::UnknownConnection)?;
        let is_set_up = stream.phase == Phase::Established;
        let may_be = is_set_up
            || stream.phase == Phase::Setup && stream.has_replied && stream.end().is_none();
        if stream.token != token || !may_be {
            return Err(Refusal::UnknownConnection);
        }
        if attempt <= stream.attempt {
            // If two cross, the later one counts; its sender has abandoned this one.
            return Ok(());
        }
        (stream.attempt, stream.closed, stream.is_doubted) = (attempt, None, false);
        let (secret, failure) = (stream.secret, stream.failure.clone());
        if !is_set_up {
            stream.imply_commit();
        }
        if let Some(kept) = stream.kept_until.take() {
            self.expiring.remove(&(kept, id));
        }
        let old = stream.conn.replace(conn);
        if let Some(peer) = self.conns.get(&conn).map(|conn| conn.peer) {
            stream.peer = peer;
        }
        if let Some(found) = self.conns.get_mut(&conn) {
            found.attach(secret, id);
            if is_set_up {
                found.handle_established(&secret);
            }
        }
        if let Some(old) = old.filter(|old| *old != conn) {
            self.detach(old, &secret);
        }
        // For the address known so far.
        self.stop_waiting(id);
        if let (Some(stream), Some(found)) = (self.streams.get_mut(&id), self.conns.get(&conn)) {
            stream.caller = found.caller.or(stream.caller);
        }
        self.transmit(conn, &Frame { kind: Kind::Resume, secret, body: Vec::new() });
        match failure {
            Some(reason) => self.send_goodbye(id, &reason),
            None if is_set_up => self.notify(id, PeerChange::Back),
            None => {}
        }
        Ok(())
    }

    /// Delivers a frame of a stream on this connection.
    fn deliver(&mut self, now: Time, conn: ConnId, id: StreamId, frame: Frame) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.phase != Phase::Setup {
            return self.handle_established_frame(id, frame);
        }
        if frame.kind.is_of_inquiry() {
            return self.answer_early(conn, &frame);
        }
        let (is_last, secret, token) = (frame.kind == Kind::Goodbye, stream.secret, stream.token);
        if let Err(end) = stream.push(frame) {
            return self.end_conn(now, conn, end);
        }
        if is_last {
            stream.conn = None;
            // Its listener has not seen it yet: remove it.
            if stream.role == StreamRole::Accepts && self.acceptor.withdraw(&token, id) {
                self.forget(id);
            }
            self.detach(conn, &secret);
        }
    }

    /// A peer asks what a connection waits for that NCCL here has not accepted: exactly that.
    fn answer_early(&mut self, conn: ConnId, frame: &Frame) {
        let has_room = self.conns.get(&conn).is_some_and(|conn| conn.backlog() < MAX_BACKLOG);
        if frame.kind == Kind::WaitQuestion && has_room {
            self.transmit(
                conn,
                &Frame {
                    kind: Kind::WaitAnswer,
                    secret: frame.secret,
                    body: Answer::NotAccepted.body(),
                },
            );
        }
    }

    /// Handles a frame from the peer of an established stream: of recovery, a Goodbye, or the
    /// answer to a Resume.
    fn handle_established_frame(&mut self, id: StreamId, frame: Frame) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if frame.kind.is_of_inquiry() {
            // It is not essential, and is repeated.
            if stream.phase == Phase::Established && !stream.is_resuming {
                self.notify(id, PeerChange::Inquiry(frame));
            }
            return;
        }
        if frame.kind.is_of_recovery() && stream.receives_recovery && !stream.is_resuming {
            return self.notify(id, PeerChange::Frame(frame));
        }
        let (was_resuming, peer) = (std::mem::take(&mut stream.is_resuming), stream.peer);
        if was_resuming {
            self.note_answer(peer, frame.kind == Kind::Resume);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut complaint = None;
        let change = match frame.kind {
            Kind::Resume if was_resuming => {
                (stream.closed, stream.is_doubted) = (None, false);
                return self.notify(id, PeerChange::Back);
            }
            // It may have closed in good order, so the device decides on what is in flight.
            Kind::Refuse if was_resuming => PeerChange::Unknown(unknown(&frame.body_text())),
            Kind::Goodbye if frame.body.is_empty() => {
                PeerChange::Closed("the peer has closed the connection".into())
            }
            Kind::Goodbye => PeerChange::Broken(format!("the peer gave up: {}", frame.body_text())),
            kind => {
                complaint = Some(format!("an unexpected message ({kind})"));
                PeerChange::Broken(format!("the peer sent an unexpected message ({kind})"))
            }
        };
        stream.phase = Phase::Over;
        let (conn, secret) = (stream.conn.take(), stream.secret);
        self.notify(id, change);
        if let Some(conn) = conn {
            if let Some(why) = complaint {
                self.transmit(conn, &Frame::text(Kind::Goodbye, secret, &why));
            }
            self.detach(conn, &secret);
        }
    }

    /// Refuses a peer, which waits for the answer. The refusal is always sent if the driver reads
    /// nothing while [`Self::is_backlogged`].
    fn refuse(&mut self, conn: ConnId, kind: Kind, secret: Secret, why: &Refusal) {
        if self
            .conns
            .get(&conn)
            .is_some_and(|conn| conn.backlog() < conn.max_backlog() + MAX_BACKLOG)
        {
            self.transmit(conn, &Frame::text(kind, secret, &why.to_string()));
        }
    }
}

// Streams whose control connection ends, and their move to another one.
//
// ```text
//            lost                    dialled again            answered
// carried ──────────► waiting ─────────────────► resuming ──────────────► carried
//    │ the peer's process   ▲ the attempt failed ───┘ │ the peer does not know the connection
//    ▼ has given up         │                         ▼
//   over                    └ it is dead: over        over
// ```
//
// All streams to one address wait together, and resume over one new control connection. Streams
// that the peer dials for wait there too, and ask it to, over that one (below). Further below is
// how a dead peer is recognised.
impl ControlPlane {
    /// The control connection to `address`, dialled if there is none.
    fn conn_to(&mut self, now: Time, address: SocketAddr) -> ConnId {
        if let Some(conn) = self.pool.get(&address).and_then(|peer| peer.conn) {
            return conn;
        }
        let conn = self.add_conn(address, Stage::Dialling);
        self.pool.update(address, |peer| {
            peer.conn = Some(conn);
            peer.since = now;
            peer.is_dialling = true;
            peer.redial.stop();
        });
        self.events.push_back(Event::Dial { conn, address });
        conn
    }

    /// Handles a timer of `address`.
    fn handle_due(&mut self, now: Time, address: SocketAddr) {
        let Some(peer) = self.pool.get(&address) else { return };
        match peer.conn.filter(|_| peer.is_dialling && peer.since + DIAL_LIMIT <= now) {
            Some(conn) => {
                self.end_conn(now, conn, End::Unreachable(TIMED_OUT));
            }
            None if peer.conn.is_some() => self.pool.update(address, |peer| peer.redial.stop()),
            None => drop(self.conn_to(now, address)),
        }
    }

    /// Asks the peer at `address` to resume all waiting streams over `conn`, or to dial for them.
    fn resume_all(&mut self, address: SocketAddr, conn: ConnId) {
        let waiting = self.pool.update(address, |peer| std::mem::take(&mut peer.waiting));
        let dials = |id: &StreamId| {
            self.streams.get(id).is_some_and(|stream| stream.role == StreamRole::Dials)
        };
        let (waiting, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(dials);
        self.pool.update(address, |peer| peer.resuming += waiting.len());
        others.into_iter().for_each(|id| self.ask_to_dial(conn, id));
        if !waiting.is_empty() {
            self.announce_port(conn);
        }
        // Goodbyes come last: the control connection closes with its last stream.
        let mut farewells = Vec::new();
        for id in waiting {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.attempt = stream.attempt.saturating_add(1);
            stream.conn = Some(conn);
            stream.is_resuming = true;
            let resume = Resume { token: stream.token, attempt: stream.attempt }
                .frame(Kind::Resume, stream.secret);
            match (&stream.phase, &stream.failure) {
                (Phase::Closing(reason), _) => farewells.push((id, reason.clone(), true)),
                (_, Some(reason)) => farewells.push((id, reason.clone(), false)),
                (_, None) => {}
            }
            if let Some(found) = self.conns.get_mut(&conn) {
                found.attach(resume.secret, id);
                found.handle_established(&resume.secret);
            }
            self.transmit(conn, &resume);
        }
        for (id, reason, is_closing) in farewells {
            self.send_goodbye(id, &reason);
            if is_closing {
                self.forget(id);
            }
        }
    }

    /// Handles the peer's answer for a stream. After the last answer, logs how many streams have
    /// resumed.
    fn note_answer(&mut self, address: SocketAddr, resumes: bool) {
        let resumed = self.pool.update(address, |peer| {
            peer.resuming = peer.resuming.saturating_sub(1);
            peer.resumed += usize::from(resumes);
            if peer.resuming == 0 { std::mem::take(&mut peer.resumed) } else { 0 }
        });
        if resumed > 0 {
            let text = format!(
                "the control connection to {address} is back: {resumed} connection(s) resumed over it"
            );
            self.log(Level::Info, text);
        }
    }

    /// A control connection has ended, or is ended here: ends those of its streams that cannot move
    /// to another.
    fn end_conn(&mut self, now: Time, conn: ConnId, end: End) {
        let Some(mut found) = self.conns.remove(&conn) else { return };
        let (peer, is_dialled, streams) = (found.peer, found.is_dialled(), found.take_streams());
        let is_answered = found.is_answered;
        self.events.push_back(Event::Close { conn, last: found.into_outgoing() });
        let since =
            self.pool.get(&peer).filter(|peer| peer.conn == Some(conn)).map(|peer| peer.since);
        self.log_loss(now, (conn, peer), &streams, &end);
        for id in streams {
            self.handle_stream_end(now, id, &end);
        }
        // After that, as addresses without waiting streams are forgotten.
        if let Some(since) = since.filter(|_| is_dialled) {
            self.note_end(now, peer, since, &end, is_answered);
            self.give_up_dead(now, peer);
        }
    }

    /// Handles the consequences of the end of the control connection to `address` for the next
    /// attempt. `is_answered`: the peer had sent something over it.
    fn note_end(
        &mut self,
        now: Time,
        address: SocketAddr,
        since: Time,
        end: &End,
        is_answered: bool,
    ) {
        let jitter = self.roll();
        self.pool.update(address, |peer| {
            peer.conn = None;
            (peer.resuming, peer.resumed) = (0, 0);
            let was_up = !std::mem::take(&mut peer.is_dialling);
            match end {
                End::Unreachable(REFUSED) => peer.refusals.handle_refusal(now),
                _ => peer.refusals.clear(),
            }
            // The port may have too many clients, and close one before it answers.
            match was_up && (matches!(end, End::Lost(_)) || *end == End::Closed && is_answered) {
                true => peer.redial.handle_loss(now, since, jitter),
                false => peer.redial.handle_failed_dial(now, jitter),
            }
        });
    }

    fn log_loss(
        &mut self,
        now: Time,
        (conn, peer): (ConnId, SocketAddr),
        streams: &[StreamId],
        end: &End,
    ) {
        let why = match end {
            End::Lost(why) => why,
            End::Closed => CLOSED,
            _ => return,
        };
        let is_carried = |id: &&StreamId| {
            self.streams
                .get(id)
                .is_some_and(|s| s.phase == Phase::Established && s.conn == Some(conn))
        };
        let count = streams.iter().filter(is_carried).count();
        if count > 0 {
            let level = self.losses.level(now, peer.ip());
            let text = format!(
                "the control connection to {peer} is lost ({why}). Data of {count} connection(s) still flows over RDMA; Ferrite \
                 dials again"
            );
            self.log(level, text);
        }
    }

    /// The control connection of a stream has ended.
    fn handle_stream_end(&mut self, now: Time, id: StreamId, end: &End) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.conn = None;
        if stream.phase != Phase::Setup {
            return self.handle_established_end(now, id, end);
        }
        if stream.role == StreamRole::Accepts {
            let (token, is_lost) = (stream.token, matches!(end, End::Lost(_) | End::Closed));
            if is_lost && stream.has_replied {
                stream.handle_closed(now, end);
                // If it has committed, it comes back.
                if !stream.is_committed() {
                    let until = now + self.first_frame_limit;
                    stream.kept_until = Some(until);
                    self.expiring.insert((until, id));
                }
                return;
            }
            if self.acceptor.withdraw(&token, id) {
                return self.forget(id);
            }
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.handle_end(end.clone());
        }
    }

    /// [`Self::handle_stream_end`] for an established stream.
    fn handle_established_end(&mut self, now: Time, id: StreamId, end: &End) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let was_asked =
            std::mem::take(&mut stream.is_resuming) || stream.asks_over.take().is_some();
        let change = match end {
            End::Lost(_) | End::Closed | End::Unreachable(_) => {
                let why = if let End::Lost(why) = end { why } else { CLOSED };
                stream.handle_closed(now, end);
                if !was_asked {
                    let text = format!("the control connection was lost before ({why})");
                    self.notify(id, PeerChange::Lost(text));
                }
                return self.wait_for_another(now, id);
            }
            // Another program has the port.
            End::Wrong(why) | End::Refused(why) if was_asked => PeerChange::Unknown(unknown(why)),
            End::Wrong(why) => PeerChange::Broken(why.clone()),
            End::Refused(why) => PeerChange::Broken(format!("the peer gave up: {why}")),
        };
        stream.phase = Phase::Over;
        self.notify(id, change);
    }

    /// A stream needs another control connection: to its address, where one may exist already, or
    /// from the peer.
    fn wait_for_another(&mut self, now: Time, id: StreamId) {
        let jitter = self.roll();
        let Some(stream) = self.streams.get(&id) else { return };
        let Some(address) = stream.address() else { return self.keep_closed(now, id) };
        let dials = stream.role == StreamRole::Dials;
        let (conn, is_doubted) = self.pool.update(address, |peer| {
            peer.waiting.insert(id);
            match peer.conn.is_none() && peer.redial.due().is_none() {
                true if dials => peer.redial.handle_failed_dial(now, jitter),
                true => peer.redial.handle_wait(now, jitter),
                false => {}
            }
            (peer.conn, peer.doubted.is_some())
        });
        if is_doubted {
            self.doubt(now, id);
        }
        let is_up =
            |conn: &ConnId| self.conns.get(conn).is_some_and(|conn| conn.stage == Stage::Dialled);
        if let Some(conn) = conn.filter(is_up) {
            self.resume_all(address, conn);
        }
    }

    /// Closes a control connection that no stream uses or is about to use.
    fn close_if_idle(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get(&conn) else { return };
        let (peer, is_dialled) = (found.peer, found.is_dialled());
        let is_awaited =
            is_dialled && self.pool.get(&peer).is_some_and(|peer| !peer.waiting.is_empty());
        let is_in_use = found.stream_count() > 0 || is_awaited || self.reading == Some(conn);
        if is_in_use || found.stage == Stage::Unauthenticated || found.is_for_requests {
            return;
        }
        if let Some(found) = self.conns.remove(&conn) {
            self.events.push_back(Event::Close { conn, last: found.into_outgoing() });
        }
        if is_dialled {
            self.pool.update(peer, |peer| {
                peer.conn = None;
                peer.is_dialling = false;
            });
        }
    }

    /// [`Self::close_if_idle`] for the one to `address`, after a stream has stopped waiting for it.
    fn close_if_idle_to(&mut self, address: SocketAddr) {
        if let Some(conn) = self.pool.get(&address).and_then(|peer| peer.conn) {
            self.close_if_idle(conn);
        }
    }
}

// How an end that does not dial asks the peer to: it dials the port that the peer has announced,
// and reports for each stream that its control connection is lost. The peer ends that one, if it
// has not yet, and dials another one. The one used for asking stays open until then, so that its
// end is a signal too.
impl ControlPlane {
    /// Announces once over a dialled control connection where this process accepts connections.
    /// Call it before the first frame of a stream, so that the peer can ask for another control
    /// connection after a loss.
    fn announce_port(&mut self, conn: ConnId) {
        let Some(address) = self.port else { return };
        let Some(found) = self.conns.get_mut(&conn).filter(|found| found.is_dialled()) else {
            return;
        };
        if !std::mem::replace(&mut found.has_reported, true) {
            self.transmit(conn, &DialerAddress { address }.frame());
        }
    }

    /// The process that dialled `conn` announces where it accepts connections.
    fn note_caller(&mut self, conn: ConnId, frame: &Frame) {
        let Some(found) = self.conns.get_mut(&conn) else { return };
        let Ok(DialerAddress { mut address }) = DialerAddress::parse(&frame.body) else { return };
        // Interface numbers are local to a host.
        if let (SocketAddr::V6(announced), SocketAddr::V6(seen)) = (&mut address, found.peer) {
            announced.set_scope_id(seen.scope_id());
        }
        let caller =
            Some(address).filter(|address| address.port() != 0 && !address.ip().is_unspecified());
        found.caller = caller;
        let streams: Vec<_> = found.streams().collect();
        for id in streams {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.caller = caller.or(stream.caller);
            }
        }
    }

    /// Asks the peer over `conn` to dial for a stream.
    fn ask_to_dial(&mut self, conn: ConnId, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.asks_over = Some(conn);
        let request = Resume { token: stream.token, attempt: stream.attempt }
            .frame(Kind::Redial, stream.secret);
        if let Some(found) = self.conns.get_mut(&conn) {
            found.ask(request.secret, id);
        }
        self.transmit(conn, &request);
    }

    /// The peer asks this end to dial for one of its streams.
    ///
    /// # Errors
    /// There is no such stream.
    fn handle_request(&mut self, now: Time, conn: ConnId, frame: &Frame) -> Result<(), Refusal> {
        let Resume { token, attempt } = Resume::parse(&frame.body)?;
        let id = self.dialled.get(&frame.secret).copied().ok_or(Refusal::UnknownConnection)?;
        let stream = self
            .streams
            .get(&id)
            .filter(|stream| stream.token == token && stream.phase != Phase::Over);
        let stream = stream.ok_or(Refusal::UnknownConnection)?;
        let (lost, address, is_old) = (stream.conn, stream.peer, attempt < stream.attempt);
        if let Some(found) = self.conns.get_mut(&conn) {
            found.is_for_requests |= found.stage == Stage::Accepted;
        }
        self.transmit(conn, &Frame { kind: Kind::Redial, secret: frame.secret, body: Vec::new() });
        match lost {
            // It has dialled since.
            _ if is_old => {}
            Some(lost) => self.end_conn(now, lost, End::Lost("the peer has lost it".into())),
            None => self.pool.update(address, |peer| peer.redial.handle_network_change(now)),
        }
        Ok(())
    }

    /// The peer that was asked over `conn` to dial has answered.
    fn handle_request_answer(&mut self, conn: ConnId, frame: &Frame) {
        let Some(id) = self.conns.get(&conn).and_then(|found| found.asks_for(&frame.secret)) else {
            return;
        };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if frame.body.is_empty() {
            stream.closed = None;
            return;
        }
        stream.phase = Phase::Over;
        self.notify(id, PeerChange::Unknown(unknown(&frame.body_text())));
        self.stop_waiting(id);
    }

    /// Whether the peer of `id` can be asked to dial, or this end dials itself.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn has_address(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.address().is_some())
    }
}

// Whether a silent peer is dead.
//
// The end of a control connection does not show it. A killed process ends it by a close, or by a
// reset if it had unread input; anything between two living processes may do the same. So the peer
// is dialled, whichever end dialled before. A refusing port belongs to a dead process, unless the
// peer's device acknowledges. While it does, the peer is alive.
//
// If the peer's address has gone with its process, as with a pod, no host refuses. Then a closed
// control connection shows that it is dead, if neither port nor device has answered since.
//
// A port that accepts and stays silent shows nothing. Another process may have the port of a dead
// one, but a stopped process looks the same. Its device acknowledges probes, but there are none
// while a connection recovers. So the recovery's time limit decides.
impl ControlPlane {
    /// The peer's device has acknowledged or sent something, while the peer of `id` was suspected
    /// to be dead.
    pub fn handle_acknowledged(&mut self, now: Time, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.acknowledged = Some(now);
        }
    }

    /// An attempt to dial `address` has failed: if its process is dead, the waiting streams have
    /// lost their peer.
    fn give_up_dead(&mut self, now: Time, address: SocketAddr) {
        let Some(peer) = self.pool.get(&address) else { return };
        let streams = || peer.waiting.iter().filter_map(|id| self.streams.get(id));
        let closed = streams().filter_map(|stream| stream.closed).min();
        let acknowledged = streams().filter_map(|stream| stream.acknowledged).max();
        let signs = self.pool.update(address, |peer| {
            peer.silence.handle_look(now, acknowledged);
            LifeSigns {
                refusals: peer.refusals,
                closed,
                doubted: peer.doubted,
                silence: peer.silence,
            }
        });
        if signs.indicate_peer_death(now) {
            let dead = self.pool.update(address, |peer| std::mem::take(&mut peer.waiting));
            return dead.into_iter().for_each(|id| self.end_dead(id));
        }
        if signs.cast_doubt() && signs.doubted.is_none() {
            let waiting = self.pool.update(address, |peer| {
                (peer.doubted, peer.silence) = (Some(now), Silence::default());
                peer.waiting.clone()
            });
            waiting.into_iter().for_each(|id| self.doubt(now, id));
        }
    }

    /// Handles a lost stream whose peer dials, and has not announced where it accepts connections.
    /// If its control connection was closed, decides after a time limit.
    fn keep_closed(&mut self, now: Time, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(closed) = stream.closed {
            // The last of the looks that it takes comes at that time.
            let until = (closed + DOUBT_LIMIT).saturating_sub(LOOK_EVERY * (LOOKS - 1)).max(now);
            stream.kept_until = Some(until);
            self.expiring.insert((until, id));
            self.doubt(now, id);
        }
    }

    /// That time limit has passed.
    fn judge_closed(&mut self, now: Time, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.silence.handle_look(now, stream.acknowledged);
        let (closed, silence) = (stream.closed, stream.silence);
        let signs = LifeSigns { closed, doubted: closed, silence, ..LifeSigns::default() };
        if signs.indicate_peer_death(now) {
            return self.end_dead(id);
        }
        stream.kept_until = Some(now + LOOK_EVERY);
        self.expiring.insert((now + LOOK_EVERY, id));
    }

    /// Lets the owner of a stream probe the peer's device, which takes some time.
    fn doubt(&mut self, now: Time, id: StreamId) {
        let Some(stream) =
            self.streams.get_mut(&id).filter(|stream| stream.phase == Phase::Established)
        else {
            return;
        };
        let (was_doubted, address) =
            (std::mem::replace(&mut stream.is_doubted, true), stream.address());
        if !was_doubted {
            (stream.acknowledged, stream.silence) = (None, Silence::default());
        }
        if let Some(address) = address.filter(|_| !was_doubted) {
            self.pool.update(address, |peer| {
                (peer.doubted, peer.silence) = (Some(now), Silence::default())
            });
        }
        self.notify(id, PeerChange::Doubted);
    }

    /// The peer of a stream is dead.
    fn end_dead(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if matches!(stream.phase, Phase::Closing(_)) {
            return self.forget(id);
        }
        stream.phase = Phase::Over;
        self.notify(id, PeerChange::Broken(DEAD.into()));
    }
}

/// The reason for a peer whose process, or another one at its port, does not know the connection.
fn unknown(why: &str) -> String {
    format!("the peer has closed the connection, or has died ({why})")
}
