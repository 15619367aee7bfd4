//! How an end that does not dial asks the peer to: it dials the port that the peer has told, and says of each stream that its control connection
//! is lost. The peer ends that one, if it has not yet, and dials another one. The one that it is asked over stands until then, so that
//! its end tells as well.

use super::frames::unknown;
use super::{ConnId, ControlPlane, End, PeerChange, Phase, Stage, StreamId, Time};
use crate::control::refusal::Refusal;
use crate::frame::{Frame, Kind};
use crate::handshake::{Caller, Resume};
use std::net::SocketAddr;

impl ControlPlane {
    /// Tells over a dialled control connection, once, where this process is called. To be called before the first frame of a stream: if the
    /// control connection is lost after that, the peer can ask for another one.
    pub(super) fn tell_port(&mut self, conn: ConnId) {
        let Some(address) = self.port else { return };
        let Some(found) = self.conns.get_mut(&conn).filter(|found| found.is_dialled()) else { return };
        if !std::mem::replace(&mut found.has_told, true) {
            self.transmit(conn, &Caller { address }.frame());
        }
    }

    /// The process that has dialled `conn` tells where it is called.
    pub(super) fn note_caller(&mut self, conn: ConnId, frame: &Frame) {
        let Some(found) = self.conns.get_mut(&conn) else { return };
        let Ok(Caller { mut address }) = Caller::parse(&frame.body) else { return };
        // The number of an interface is that of one host.
        if let (SocketAddr::V6(told), SocketAddr::V6(seen)) = (&mut address, found.peer) {
            told.set_scope_id(seen.scope_id());
        }
        let caller = Some(address).filter(|address| address.port() != 0 && !address.ip().is_unspecified());
        found.caller = caller;
        let streams: Vec<_> = found.streams().collect();
        for id in streams {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.caller = caller.or(stream.caller);
            }
        }
    }

    /// Asks the peer over `conn` to dial for a stream.
    pub(super) fn ask_to_dial(&mut self, conn: ConnId, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.asks_over = Some(conn);
        let request = Resume { token: stream.token, attempt: stream.attempt }.frame(Kind::Redial, stream.secret);
        if let Some(found) = self.conns.get_mut(&conn) {
            found.ask(request.secret, id);
        }
        self.transmit(conn, &request);
    }

    /// The peer asks this end to dial for one of its streams.
    ///
    /// # Errors
    /// There is no such stream.
    pub(super) fn handle_request(&mut self, now: Time, conn: ConnId, frame: &Frame) -> Result<(), Refusal> {
        let Resume { token, attempt } = Resume::parse(&frame.body)?;
        let id = self.dialled.get(&frame.secret).copied().ok_or(Refusal::UnknownConnection)?;
        let stream = self.streams.get(&id).filter(|stream| stream.token == token && stream.phase != Phase::Over);
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

    /// The peer that was asked over `conn` to dial answers.
    pub(super) fn handle_request_answer(&mut self, conn: ConnId, frame: &Frame) {
        let Some(id) = self.conns.get(&conn).and_then(|found| found.asks_for(&frame.secret)) else { return };
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
    #[cfg(any(test, fuzzing))]
    pub(crate) fn has_address(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.address().is_some())
    }
}
