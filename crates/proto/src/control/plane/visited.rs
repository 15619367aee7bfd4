//! For a test: which event comes in which state of a stream, and of a control connection.

use super::{ConnId, ControlPlane, StreamId};
#[cfg(test)]
use super::{Phase, Role, Stage};
use crate::control::event::End;
use crate::frame::{ALL_CONNECTIONS, Frame, Kind};

impl ControlPlane {
    /// `event` comes for a stream, before it changes anything.
    #[cfg(test)]
    pub(super) fn note(&self, id: StreamId, event: &'static str) {
        let Some(stream) = self.streams.get(&id) else { return };
        let end = match stream.role {
            Role::Dials => "dials",
            Role::Accepts => "accepts",
        };
        let state = match (&stream.phase, stream.conn) {
            (Phase::Setup, Some(_)) => "Setup",
            (Phase::Setup, None) => "Setup, lost",
            (Phase::Established, Some(_)) if stream.is_resuming => "Established, resuming",
            (Phase::Established, Some(_)) => "Established",
            (Phase::Established, None) if stream.asks_over.is_some() => "Established, asking",
            (Phase::Established, None) => "Established, lost",
            (Phase::Closing(_), _) => "Closing",
            (Phase::Over, _) => "Over",
        };
        crate::control::sim::note(end, state, event);
    }

    #[cfg(not(test))]
    pub(super) fn note(&self, _id: StreamId, _event: &'static str) {}

    /// `event` comes for a control connection, before it changes anything.
    #[cfg(test)]
    pub(super) fn note_conn(&self, id: ConnId, event: &'static str) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (end, state) = match conn.stage {
            Stage::Dialling => ("dials", "Dialling"),
            Stage::Dialled => ("dials", "Dialled"),
            Stage::Unauthenticated => ("accepts", "Unauthenticated"),
            Stage::Accepted => ("accepts", "Accepted"),
        };
        crate::control::sim::note_conn(end, state, event);
    }

    #[cfg(not(test))]
    pub(super) fn note_conn(&self, _id: ConnId, _event: &'static str) {}
}

/// The name of the event that this frame comes over a control connection; `is_of_stream`: of a stream that is on it.
pub(super) fn of_conn_frame(frame: &Frame, is_of_stream: bool) -> &'static str {
    match frame.kind {
        Kind::Redial => "Redial",
        _ if is_of_stream => "frame of a stream",
        Kind::Hello => "Hello",
        Kind::Resume => "Resume",
        Kind::Refuse if frame.secret == ALL_CONNECTIONS => "Refuse of all",
        _ => "other frame",
    }
}

/// The name of the event that a frame of this kind comes.
pub(super) fn of_frame(kind: Kind) -> &'static str {
    match kind {
        Kind::Hello => "Hello",
        Kind::Reply => "Reply",
        Kind::Commit => "Commit",
        Kind::Goodbye => "Goodbye",
        Kind::Refuse => "Refuse",
        Kind::Resume => "Resume",
        kind if kind.is_of_inquiry() => "inquiry",
        _ => "recovery",
    }
}

/// The name of the event that the control connection ends so.
pub(super) fn of_end(end: &End) -> &'static str {
    match end {
        End::Unreachable(_) => "unreachable",
        End::Closed => "closed",
        End::Lost(_) => "lost",
        End::Wrong(_) => "wrong",
        End::Refused(_) => "refused",
    }
}
