//! What becomes of streams when their control connection ends, and how they come to another one.
//!
//! ```text
//!            lost                    dialled again            answered
//! carried ──────────► waiting ─────────────────► resuming ──────────────► carried
//!    │ the peer's process   ▲ the attempt failed ───┘ │ the peer does not know the connection
//!    ▼ has given up         │                         ▼
//!   over                    └ it is dead: over        over
//! ```
//!
//! All streams to one address wait together, and go on over one new control connection. Those that the peer dials for wait there too, and
//! ask it to over that one ([`super::requests`]). `life` says when the peer is dead.

use super::frames::unknown;
use super::{ConnId, ControlPlane, End, Event, Level, PeerChange, Phase, Role, Stage, StreamId, Time};
use crate::control::redial::DIAL_LIMIT;
use crate::frame::Kind;
use crate::handshake::Resume;
use std::net::SocketAddr;

const CLOSED: &str = "closed without a goodbye";
/// `ECONNREFUSED` and `ETIMEDOUT`: this layer knows no libc.
const REFUSED: i32 = 111;
const TIMED_OUT: i32 = 110;

impl ControlPlane {
    /// The control connection to `address`: the one there is, or one that is dialled.
    pub(super) fn conn_to(&mut self, now: Time, address: SocketAddr) -> ConnId {
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

    /// The time for something that concerns `address` has come.
    pub(super) fn handle_due(&mut self, now: Time, address: SocketAddr) {
        let Some(peer) = self.pool.get(&address) else { return };
        match peer.conn.filter(|_| peer.is_dialling && peer.since + DIAL_LIMIT <= now) {
            Some(conn) => {
                self.end_conn(now, conn, End::Unreachable(TIMED_OUT));
            }
            None if peer.conn.is_some() => self.pool.update(address, |peer| peer.redial.stop()),
            None => drop(self.conn_to(now, address)),
        }
    }

    /// Asks the peer at `address` to go on over `conn` with all streams that wait for it, or to dial for them.
    pub(super) fn resume_all(&mut self, address: SocketAddr, conn: ConnId) {
        let waiting = self.pool.update(address, |peer| std::mem::take(&mut peer.waiting));
        let dials = |id: &StreamId| self.streams.get(id).is_some_and(|stream| stream.role == Role::Dials);
        let (waiting, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(dials);
        self.pool.update(address, |peer| peer.resuming += waiting.len());
        others.into_iter().for_each(|id| self.ask_to_dial(conn, id));
        if !waiting.is_empty() {
            self.tell_port(conn);
        }
        // Goodbyes come after all: with the last stream the control connection would go.
        let mut farewells = Vec::new();
        for id in waiting {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.attempt = stream.attempt.saturating_add(1);
            stream.conn = Some(conn);
            stream.is_resuming = true;
            let resume = Resume { token: stream.token, attempt: stream.attempt }.frame(Kind::Resume, stream.secret);
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

    /// The peer has answered for a stream whether it goes on. With the last one the log tells how many do.
    pub(super) fn note_answer(&mut self, address: SocketAddr, goes_on: bool) {
        let resumed = self.pool.update(address, |peer| {
            peer.resuming = peer.resuming.saturating_sub(1);
            peer.resumed += usize::from(goes_on);
            if peer.resuming == 0 { std::mem::take(&mut peer.resumed) } else { 0 }
        });
        if resumed > 0 {
            let text = format!("the control connection to {address} is back: {resumed} connection(s) go on over it");
            self.log(Level::Info, text);
        }
    }

    /// A control connection has ended, or is ended here: so have its streams, as far as they are not to go on over another.
    pub(super) fn end_conn(&mut self, now: Time, conn: ConnId, end: End) {
        let Some(mut found) = self.conns.remove(&conn) else { return };
        let (peer, is_dialled, streams) = (found.peer, found.is_dialled(), found.take_streams());
        let is_answered = found.is_answered;
        self.events.push_back(Event::Close { conn, last: found.into_outgoing() });
        let since = self.pool.get(&peer).filter(|peer| peer.conn == Some(conn)).map(|peer| peer.since);
        self.say_lost(now, (conn, peer), &streams, &end);
        for id in streams {
            self.handle_stream_end(now, id, &end);
        }
        // After that: nothing is kept of an address that no stream waits for.
        if let Some(since) = since.filter(|_| is_dialled) {
            self.note_end(now, peer, since, &end, is_answered);
            self.give_up_dead(now, peer);
        }
    }

    /// What the end of the control connection to `address` means for the next attempt. `is_answered`: the peer had said something over it.
    fn note_end(&mut self, now: Time, address: SocketAddr, since: Time, end: &End, is_answered: bool) {
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
                false => peer.redial.handle_failure(now, jitter),
            }
        });
    }

    fn say_lost(&mut self, now: Time, (conn, peer): (ConnId, SocketAddr), streams: &[StreamId], end: &End) {
        let why = match end {
            End::Lost(why) => why,
            End::Closed => CLOSED,
            _ => return,
        };
        let is_carried = |id: &&StreamId| {
            self.streams.get(id).is_some_and(|s| s.phase == Phase::Established && s.conn == Some(conn))
        };
        let count = streams.iter().filter(is_carried).count();
        if count > 0 {
            let level = self.losses.level(now, peer.ip());
            let text = format!(
                "the control connection to {peer} is lost ({why}); data of {count} connection(s) still moves over RDMA, and \
                 the control connection is made again"
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
        if stream.role == Role::Accepts {
            let (token, is_lost) = (stream.token, matches!(end, End::Lost(_) | End::Closed));
            if is_lost && stream.has_replied {
                stream.handle_closed(now, end);
                // It may have committed: then it comes back.
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

    /// The same of an established stream.
    pub(super) fn handle_established_end(&mut self, now: Time, id: StreamId, end: &End) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let was_asked = std::mem::take(&mut stream.is_resuming) || stream.asks_over.take().is_some();
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

    /// A stream needs another control connection: to its address, which there may be already, or from the peer.
    pub(super) fn wait_for_another(&mut self, now: Time, id: StreamId) {
        let jitter = self.roll();
        let Some(stream) = self.streams.get(&id) else { return };
        let Some(address) = stream.address() else { return self.keep_closed(now, id) };
        let dials = stream.role == Role::Dials;
        let (conn, is_doubted) = self.pool.update(address, |peer| {
            peer.waiting.insert(id);
            match peer.conn.is_none() && peer.redial.due().is_none() {
                true if dials => peer.redial.handle_failure(now, jitter),
                true => peer.redial.handle_wait(now, jitter),
                false => {}
            }
            (peer.conn, peer.doubted.is_some())
        });
        if is_doubted {
            self.doubt(now, id);
        }
        let is_up = |conn: &ConnId| self.conns.get(conn).is_some_and(|conn| conn.stage == Stage::Dialled);
        if let Some(conn) = conn.filter(is_up) {
            self.resume_all(address, conn);
        }
    }

    /// Closes a control connection that no stream shares or is about to share.
    pub(super) fn close_if_idle(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get(&conn) else { return };
        let (peer, is_dialled) = (found.peer, found.is_dialled());
        let is_awaited = is_dialled && self.pool.get(&peer).is_some_and(|peer| !peer.waiting.is_empty());
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

    /// The same of the one to `address`, after a stream has ceased to wait for it.
    pub(super) fn close_if_idle_to(&mut self, address: SocketAddr) {
        if let Some(conn) = self.pool.get(&address).and_then(|peer| peer.conn) {
            self.close_if_idle(conn);
        }
    }
}
