//! Somebody who has come to a port and has not shown yet that it has any business there.

use super::reception::Reception;
use super::socket::{ControlSocket, Incoming};
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Token;
use std::time::Instant;

/// The socket, and how long it may stay silent.
#[derive(Debug)]
pub(in crate::net) struct Stranger {
    pub(in crate::net) socket: ControlSocket,
    /// Its key among what the port waits on.
    pub(in crate::net) key: u64,
    pub(in crate::net) came: Instant,
    pub(in crate::net) deadline: Instant,
}

/// What becomes of a stranger.
#[derive(Debug)]
pub(in crate::net) enum Verdict {
    Wait,
    Admit(Frame),
    Dismiss(String),
}

/// What somebody is told who knows no listener's token.
pub(in crate::net) const WRONG_TOKEN: &str = "no such listener: it has closed, or is another job's (wrong token)";

impl Stranger {
    /// `token` is what it has said itself; the default one is for all of its connections.
    pub(in crate::net) fn refuse(&mut self, token: Token, why: &str) {
        self.socket.send(&Frame::text(Kind::Refuse, token, why));
        let _ = self.socket.poll_sent();
    }

    /// What is to become of it, by its first words, which have come to `reception`.
    pub(in crate::net) fn judge(&mut self, reception: &Reception) -> Verdict {
        let frame = match self.socket.poll_frame() {
            Ok(Incoming::Frame(frame)) => frame,
            Ok(Incoming::Nothing) => return Verdict::Wait,
            Ok(Incoming::Closed) => return Verdict::Dismiss("it closed the connection".into()),
            Ok(Incoming::Lost(why)) => return Verdict::Dismiss(format!("its connection was lost: {why}")),
            Err(violation) => {
                self.refuse(Token::default(), violation.text());
                return Verdict::Dismiss(violation.to_string());
            }
        };
        if frame.kind == Kind::Resume {
            let Err(why) = reception.recall(&frame) else { return Verdict::Admit(frame) };
            self.refuse(frame.token, &why);
            return Verdict::Dismiss(format!("it asks for a connection in vain: {why}"));
        }
        if !reception.knows(&frame.token) {
            // Only this: connections to other listeners may be next on that line, and call again when it ends.
            self.refuse(frame.token, WRONG_TOKEN);
            return Verdict::Dismiss("it does not know this listener's token: another job, or a port scan".into());
        }
        if frame.kind != Kind::Hello {
            self.refuse(frame.token, &format!("an unexpected {:?}", frame.kind));
            return Verdict::Dismiss(format!("it sent an unexpected {:?}", frame.kind));
        }
        Verdict::Admit(frame)
    }
}
