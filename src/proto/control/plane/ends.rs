//! What becomes of streams when their control connection ends, and how they come to another one.
//!
//! ```text
//!            lost                    dialled again            answered
//! carried ──────────► waiting ─────────────────► resuming ──────────────► carried
//!    │ the peer's process   ▲ the attempt failed ───┘ │ the peer does not know the connection
//!    ▼ has ended            │                         ▼
//!   over                    └ refused for long: over  over
//! ```
//!
//! All streams to one address wait together, and go on over one new control connection.

use super::frames::unknown;
use super::visited::of_end;
use super::{ConnId, ControlPlane, End, Event, Level, PeerChange, Phase, Role, Stage, StreamId, Time};
use crate::proto::control::redial::DIAL_LIMIT;
use crate::proto::handshake::Resume;
use std::net::SocketAddr;

const DEAD: &str = "the peer's process has died";
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
                self.note_conn(conn, "timeout");
                self.end_conn(now, conn, End::Unreachable(TIMED_OUT));
            }
            None if peer.conn.is_some() => self.pool.update(address, |peer| peer.redial.stop()),
            None => drop(self.conn_to(now, address)),
        }
    }

    /// Asks the peer at `address` to go on over `conn` with all streams that wait for it.
    pub(super) fn resume_all(&mut self, address: SocketAddr, conn: ConnId) {
        let waiting = self.pool.update(address, |peer| {
            let waiting = std::mem::take(&mut peer.waiting);
            peer.resuming += waiting.len();
            waiting
        });
        // Goodbyes come after all: with the last stream the control connection would go.
        let mut farewells = Vec::new();
        for id in waiting {
            self.note(id, "dialled again");
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.attempt = stream.attempt.saturating_add(1);
            stream.conn = Some(conn);
            stream.is_resuming = true;
            let resume = Resume { token: stream.token, attempt: stream.attempt }.frame(stream.secret);
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
        self.events.push_back(Event::Close { conn, last: found.into_outgoing() });
        let since = self.pool.get(&peer).filter(|peer| peer.conn == Some(conn)).map(|peer| peer.since);
        self.say_lost(now, peer, &streams, &end);
        for id in streams {
            self.handle_stream_end(now, id, &end);
        }
        // After that: nothing is kept of an address that no stream waits for.
        if let Some(since) = since.filter(|_| is_dialled) {
            self.note_end(now, peer, since, &end);
            self.give_up_dead(now, peer);
        }
    }

    /// What the end of the control connection to `address` means for the next attempt.
    fn note_end(&mut self, now: Time, address: SocketAddr, since: Time, end: &End) {
        let jitter = self.roll();
        self.pool.update(address, |peer| {
            peer.conn = None;
            (peer.resuming, peer.resumed) = (0, 0);
            let was_up = !std::mem::take(&mut peer.is_dialling);
            match end {
                End::Unreachable(REFUSED) => peer.refusals.handle_refusal(now),
                _ => peer.refusals.clear(),
            }
            match was_up && matches!(end, End::Lost(_)) {
                true => peer.redial.handle_loss(now, since, jitter),
                false => peer.redial.handle_failure(now, jitter),
            }
        });
    }

    fn say_lost(&mut self, now: Time, peer: SocketAddr, streams: &[StreamId], end: &End) {
        let End::Lost(why) = end else { return };
        let is_carried = |id: &&StreamId| self.streams.get(id).is_some_and(|s| s.phase == Phase::Established);
        let count = streams.iter().filter(is_carried).count();
        if count > 0 {
            let level = self.losses.level(now, peer.ip());
            let text = format!(
                "the control connection to {peer} is lost ({why}); data of {count} connection(s) goes on over RDMA, and \
                 the side that has dialled dials again"
            );
            self.log(level, text);
        }
    }

    /// The control connection of a stream has ended.
    fn handle_stream_end(&mut self, now: Time, id: StreamId, end: &End) {
        self.note(id, of_end(end));
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.conn = None;
        if stream.phase != Phase::Setup {
            return self.handle_established_end(now, id, end);
        }
        if stream.role == Role::Accepts {
            let (token, is_lost) = (stream.token, matches!(end, End::Lost(_)));
            if is_lost && stream.has_replied {
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
        let was_resuming = std::mem::take(&mut stream.is_resuming);
        let (dials, peer) = (stream.role == Role::Dials, stream.peer);
        let may_live = match end {
            End::Lost(_) => true,
            // The port may have too many clients.
            End::Closed | End::Unreachable(_) => was_resuming,
            End::Wrong(_) | End::Refused(_) => false,
        };
        if may_live {
            if let End::Lost(why) = end {
                let text = format!("the control connection was lost before ({why})");
                self.notify(id, PeerChange::Lost(text));
            }
            if dials {
                self.wait_for_another(now, id, peer);
            }
            return;
        }
        stream.phase = Phase::Over;
        let change = match end {
            End::Closed | End::Unreachable(_) | End::Lost(_) => PeerChange::Broken(DEAD.into()),
            // Another program has the port.
            End::Wrong(why) | End::Refused(why) if was_resuming => PeerChange::Unknown(unknown(why)),
            End::Wrong(why) => PeerChange::Broken(why.clone()),
            End::Refused(why) => PeerChange::Broken(format!("the peer gave up: {why}")),
        };
        self.notify(id, change);
    }

    /// A stream needs another control connection to `address`, which there may be already.
    fn wait_for_another(&mut self, now: Time, id: StreamId, address: SocketAddr) {
        let jitter = self.roll();
        let conn = self.pool.update(address, |peer| {
            peer.waiting.insert(id);
            if peer.conn.is_none() && peer.redial.due().is_none() {
                peer.redial.handle_failure(now, jitter);
            }
            peer.conn
        });
        let is_up = |conn: &ConnId| self.conns.get(conn).is_some_and(|conn| conn.stage == Stage::Dialled);
        if let Some(conn) = conn.filter(is_up) {
            self.resume_all(address, conn);
        }
    }

    /// If the port at `address` has refused for long, the streams that wait for it have no peer any more.
    fn give_up_dead(&mut self, now: Time, address: SocketAddr) {
        if !self.pool.get(&address).is_some_and(|peer| peer.refusals.tell_of_death(now)) {
            return;
        }
        let dead = self.pool.update(address, |peer| std::mem::take(&mut peer.waiting));
        for id in dead {
            self.note(id, "given up");
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if matches!(stream.phase, Phase::Closing(_)) {
                self.forget(id);
                continue;
            }
            stream.phase = Phase::Over;
            self.notify(id, PeerChange::Broken(DEAD.into()));
        }
    }

    /// Closes a control connection that no stream shares or is about to share.
    pub(super) fn close_if_idle(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get(&conn) else { return };
        let (peer, is_dialled) = (found.peer, found.is_dialled());
        let is_awaited = is_dialled && self.pool.get(&peer).is_some_and(|peer| !peer.waiting.is_empty());
        let is_in_use = found.stream_count() > 0 || is_awaited || self.reading == Some(conn);
        if is_in_use || found.stage == Stage::Unauthenticated {
            return;
        }
        self.note_conn(conn, "idle");
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
