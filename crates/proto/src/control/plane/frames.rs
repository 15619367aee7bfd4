//! Where a frame goes.

use super::{ConnId, ControlPlane, End, Level, PeerChange, Phase, Role, Stage, Stream, StreamId, Time};
use crate::control::conn::MAX_BACKLOG;
use crate::control::refusal::Refusal;
use crate::explain::message::Answer;
use crate::frame::{ALL_CONNECTIONS, Frame, Kind};
use crate::handle::Secret;
use crate::handshake::{Hello, Resume};

impl ControlPlane {
    pub(super) fn handle_frame(&mut self, now: Time, conn: ConnId, frame: Frame) {
        let Some(found) = self.conns.get_mut(&conn) else { return };
        let (stream, peer) = (found.stream(&frame.secret), found.peer);
        if found.is_dialled() && !std::mem::replace(&mut found.is_answered, true) {
            self.pool.update(peer, |peer| peer.doubted = None);
        }
        let Some(found) = self.conns.get(&conn) else { return };
        match (found.stage, frame.kind, stream) {
            // It comes before the frame that shows who has dialled, and does nothing by itself.
            (Stage::Unauthenticated | Stage::Accepted, Kind::Commit, None) if frame.secret == ALL_CONNECTIONS => {
                self.note_caller(conn, &frame);
            }
            (Stage::Unauthenticated, _, _) => self.handle_first_frame(now, conn, frame),
            // Both ends of a stream may be of one process: they are told apart before the stream is.
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
            // That is for this process, and not for one of its connections.
            (Stage::Dialled, Kind::Refuse, None) if frame.secret == ALL_CONNECTIONS => {
                self.end_conn(now, conn, End::Refused(frame.body_text()));
            }
            // The last frames on a connection that no longer exists, or was given up.
            (_, kind, None) => {
                let text = format!("a message ({kind}) of {} for no connection of this process", found.peer);
                self.log(Level::Debug, text);
            }
        }
    }

    /// The first frame of an unauthenticated client shows whether it knows a listener's token or a connection's secret.
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
            // One of its connections is no more. Others may be next on that control connection, and have the caller's deadline.
            Err(why @ Refusal::UnknownConnection) => {
                if let Some(found) = self.conns.get_mut(&conn) {
                    found.stage = Stage::Unauthenticated;
                }
                self.refuse(conn, if kind == Kind::Redial { kind } else { Kind::Refuse }, secret, &why);
            }
            Err(why) => {
                // Only this one: other connections may follow on that control connection, and dial again when it ends.
                let why = why.to_string();
                self.transmit(conn, &Frame::text(Kind::Refuse, secret, &why));
                self.dismiss(conn, &why);
            }
        }
    }

    /// A hello: leads the peer to its listener.
    fn handle_hello(&mut self, conn: ConnId, hello: Frame) -> Result<(), Refusal> {
        let token = Hello::token_of(&hello.body)?;
        self.acceptor.check(&token, &hello.secret)?;
        let Some(found) = self.conns.get(&conn) else { return Ok(()) };
        let secret = hello.secret;
        let mut stream = Stream::new(Role::Accepts, token, secret, found.peer, conn);
        stream.caller = found.caller;
        let _ = stream.push(hello);
        let id = self.add_stream(stream);
        self.acceptor.admit(&token, secret, id);
        Ok(())
    }

    /// A stream of another control connection goes on here, if the peer knows its secret and its listener's token. That the
    /// peer wants it shows that it has committed, whether or not the commit has come.
    fn resume(&mut self, conn: ConnId, frame: &Frame) -> Result<(), Refusal> {
        let Resume { token, attempt } = Resume::parse(&frame.body)?;
        let id = self.acceptor.stream(&frame.secret).ok_or(Refusal::UnknownConnection)?;
        let stream = self.streams.get_mut(&id).ok_or(Refusal::UnknownConnection)?;
        let is_set_up = stream.phase == Phase::Established;
        let may_be = is_set_up || stream.phase == Phase::Setup && stream.has_replied && stream.end().is_none();
        if stream.token != token || !may_be {
            return Err(Refusal::UnknownConnection);
        }
        if attempt <= stream.attempt {
            // Of two that cross, the later one counts, and this one has been given up by its sender.
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
        // At the address that is known until now.
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

    /// A frame of a stream that is on this connection.
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
            // Nobody has seen it: it is no more.
            if stream.role == Role::Accepts && self.acceptor.withdraw(&token, id) {
                self.forget(id);
            }
            self.detach(conn, &secret);
        }
    }

    /// A peer asks what a connection waits for that NCCL here has not accepted: just for that.
    fn answer_early(&mut self, conn: ConnId, frame: &Frame) {
        let has_room = self.conns.get(&conn).is_some_and(|conn| conn.backlog() < MAX_BACKLOG);
        if frame.kind == Kind::WaitQuestion && has_room {
            self.transmit(
                conn,
                &Frame { kind: Kind::WaitAnswer, secret: frame.secret, body: Answer::NotAccepted.body() },
            );
        }
    }

    /// A frame from the peer of an established stream: of recovery, or Goodbye, or the answer to a Resume.
    pub(super) fn handle_established_frame(&mut self, id: StreamId, frame: Frame) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if frame.kind.is_of_inquiry() {
            // Nothing depends on it, and it is sent again.
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
            // It may have closed it in good order, so what is under way is left to the device.
            Kind::Refuse if was_resuming => PeerChange::Unknown(unknown(&frame.body_text())),
            Kind::Goodbye if frame.body.is_empty() => PeerChange::Closed("the peer has closed the connection".into()),
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

    /// Refuses a peer, which waits for the answer. The refusal is always sent if the driver reads nothing while [`Self::is_backlogged`].
    fn refuse(&mut self, conn: ConnId, kind: Kind, secret: Secret, why: &Refusal) {
        if self.conns.get(&conn).is_some_and(|conn| conn.backlog() < conn.max_backlog() + MAX_BACKLOG) {
            self.transmit(conn, &Frame::text(kind, secret, &why.to_string()));
        }
    }
}

/// What is known of a peer whose process, or another one at its port, does not know the connection.
pub(super) fn unknown(why: &str) -> String {
    format!("the peer has closed the connection, or has died ({why})")
}
