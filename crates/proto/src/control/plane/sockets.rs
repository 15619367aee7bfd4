//! The driver's input to a control plane: its sockets and the time; and what the driver asks of it.

use super::{ConnId, ControlConn, ControlPlane, End, Event, Level, Phase, Stage, StreamId, Time};
use crate::frame::{ALL_CONNECTIONS, Frame, Kind};
use crate::handle::Token;
use std::net::SocketAddr;

impl ControlPlane {
    /// The next thing that the driver has to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A control connection that may have something to send.
    pub fn poll_dirty(&mut self) -> Option<ConnId> {
        self.dirty.pop_first()
    }

    /// The bytes that have to go out on `conn`.
    pub fn poll_transmit(&self, conn: ConnId) -> &[u8] {
        self.conns.get(&conn).map_or(&[], |conn| conn.poll_transmit())
    }

    /// The kernel has taken the first `count` of them.
    pub fn handle_transmitted(&mut self, conn: ConnId, count: usize) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.handle_transmitted(count);
        }
    }

    /// A dialled connection has come about.
    pub fn handle_connected(&mut self, now: Time, conn: ConnId) {
        let Some(found) = self.conns.get_mut(&conn).filter(|found| found.stage == Stage::Dialling) else { return };
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

    /// Bytes have come on `conn`.
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
            // Whatever a frame does, the connection may be no more after it.
            let Some(found) = self.conns.get_mut(&conn) else { return };
            match found.poll_frame() {
                Ok(Some(frame)) => self.handle_frame(now, conn, frame),
                Ok(None) => return,
                Err(violation) => return self.handle_violation(now, conn, violation.text()),
            }
        }
    }

    /// A connection has ended, and why.
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

    /// Whether one more client can be accepted now. The oldest unauthenticated one may be closed for it.
    ///
    /// # Errors
    /// Not before this time.
    pub fn make_room(&mut self, now: Time) -> Result<(), Time> {
        while let Some(oldest) = self.acceptor.poll_surplus(now)? {
            self.dismiss(oldest, "it stayed silent while others came");
        }
        Ok(())
    }

    /// A client at `peer` has connected to the port.
    pub fn handle_client(&mut self, now: Time, peer: SocketAddr) -> ConnId {
        let conn = self.add_conn(peer, Stage::Unauthenticated);
        self.acceptor.add_client(conn, now, now + self.first_frame_limit);
        conn
    }

    /// From now on clients that show `token` are kept for the listener that fetches them with it.
    pub fn register(&mut self, token: Token) {
        self.acceptor.register(token);
    }

    /// The listener with `token` is gone. When no listener is left, unauthenticated clients need not wait.
    pub fn deregister(&mut self, token: &Token) {
        for stream in self.acceptor.deregister(token) {
            self.send_goodbye(stream, "");
            self.forget(stream);
        }
        if !self.acceptor.has_listeners() {
            for conn in self.acceptor.clients() {
                self.dismiss(conn, "nobody listens any more");
            }
        }
    }

    /// Whether there is a listener.
    pub fn has_listeners(&self) -> bool {
        self.acceptor.has_listeners()
    }

    /// Whether the port has to stay open: there is a listener, or a connection that a peer may have to resume, or to ask to be resumed.
    pub fn is_port_needed(&self) -> bool {
        self.acceptor.has_listeners() || !self.streams.is_empty()
    }

    /// Where this process is called from now on; `None`: nowhere.
    pub fn set_port(&mut self, port: Option<SocketAddr>) {
        self.port = port;
    }

    /// When [`Self::handle_timeout`] has to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let kept = self.expiring.first().map(|(until, _)| *until);
        [self.acceptor.poll_timeout(), self.pool.poll_timeout(), kept].into_iter().flatten().min()
    }

    /// A port of this machine has come up: peers whose control connections are lost are dialled at once.
    pub fn handle_network_change(&mut self, now: Time) {
        self.pool.handle_network_change(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(conn) = self.acceptor.poll_late(now) {
            // A peer that has sent nothing dials again; one that cannot be sent any more need not.
            if self.conns.get(&conn).is_some_and(ControlConn::has_begun) {
                let why = "the first message did not come to an end";
                self.transmit(conn, &Frame::text(Kind::Refuse, ALL_CONNECTIONS, why));
            }
            self.dismiss(conn, "it stayed silent");
        }
        while let Some(address) = self.pool.poll_due(now) {
            self.handle_due(now, address);
        }
        while let Some((until, id)) = self.expiring.first().copied().filter(|(until, _)| *until <= now) {
            self.expiring.remove(&(until, id));
            self.handle_expired(now, id);
        }
    }

    /// A stream has been kept for as long as it may be.
    fn handle_expired(&mut self, now: Time, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.kept_until = None;
        match stream.phase {
            Phase::Closing(_) => self.forget(id),
            Phase::Established => self.judge_closed(now, id),
            // The peer has not come back; the listener dismisses it.
            _ => {
                let seconds = self.first_frame_limit.as_secs();
                stream.handle_end(End::Lost(format!("the peer has not come back within {seconds} s")));
            }
        }
    }

    /// Closes an unauthenticated client, and logs why.
    pub(super) fn dismiss(&mut self, conn: ConnId, why: &str) {
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
    #[cfg(any(test, fuzzing))]
    pub(crate) fn conn_of(&self, id: StreamId) -> Option<ConnId> {
        self.streams.get(&id).and_then(|stream| stream.conn)
    }

    /// What a test looks at: control connections, streams, peers, the most that wait for a listener.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn counts(&self) -> [usize; 4] {
        [self.conns.len(), self.streams.len(), self.pool.len(), self.acceptor.most_pending()]
    }

    /// Clients that have not shown yet that they know a listener or a connection.
    #[cfg(test)]
    pub(crate) fn unauthenticated_count(&self) -> usize {
        self.acceptor.clients().len()
    }

    /// The most bytes and frames that any control connection, and any stream, keeps.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn most_kept(&self) -> [usize; 3] {
        let incoming = self.conns.values().map(ControlConn::pending_bytes).max().unwrap_or(0);
        let outgoing = self.conns.values().map(ControlConn::backlog).max().unwrap_or(0);
        [incoming, outgoing, self.streams.values().map(super::Stream::inbox_len).max().unwrap_or(0)]
    }
}
