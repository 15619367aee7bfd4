//! A stream: one RDMA connection's share of a control connection.

use super::event::{End, Received};
use super::redial::Silence;
use super::{ConnId, Time};
use crate::frame::{Frame, Kind};
use crate::handle::{Secret, Token};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Frames that wait in one inbox: a connection's set-up has at most two, and its end. Between commit and `accept` there may be some of
/// recovery, of which the latest of each kind counts.
pub const MAX_INBOX: usize = 8;

/// How far an RDMA connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It is being set up; its owner polls the inbox.
    Setup,
    /// Both ends are there; its owner receives frames of recovery, and the peer's end.
    Established,
    /// The owner has closed it while there was no control connection; the peer is sent a Goodbye once there is one.
    Closing(String),
    /// One end has sent its last frame.
    Over,
}

/// Which end of the control connection dials, also after a loss. The other one may dial to ask for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This end.
    Dials,
    /// The peer.
    Accepts,
}

/// What is known of one RDMA connection.
#[derive(Debug)]
pub struct Stream {
    /// The listener's token.
    pub token: Token,
    /// Names the stream in frames.
    pub secret: Secret,
    /// Who dials.
    pub role: Role,
    /// The other end's address.
    pub peer: SocketAddr,
    /// The control connection that carries it at present.
    pub conn: Option<ConnId>,
    /// Where the peer is called, if it dials and has told that.
    pub caller: Option<SocketAddr>,
    /// The control connection over which the peer is asked to dial.
    pub asks_over: Option<ConnId>,
    /// How far it is.
    pub phase: Phase,
    /// The greatest number of a resumption, sent or heeded.
    pub attempt: u32,
    /// Whether a resumption has been sent and not answered.
    pub is_resuming: bool,
    /// Whether the peer may know of it: a hello has been sent, or has come.
    pub is_known: bool,
    /// Whether this end has replied: from then on the peer may have committed.
    pub has_replied: bool,
    /// Whether the owner, once the stream is established, receives frames of recovery.
    pub receives_recovery: bool,
    /// What this end has failed with while there was no control connection.
    pub failure: Option<String>,
    /// Until when a stream that is lost before it is established, or that is closing, is kept.
    pub kept_until: Option<Time>,
    /// Since when its control connection is closed, and the peer has said nothing over another one.
    pub closed: Option<Time>,
    /// Whether its owner has been told that it is in doubt whether the peer lives.
    pub is_doubted: bool,
    /// When the peer's device acknowledged something last while that was in doubt.
    pub acknowledged: Option<Time>,
    /// Looks for that, of a stream whose peer has told no port.
    pub silence: Silence,
    inbox: VecDeque<Frame>,
    /// Whether a commit has come, or has been implied; the owner may have taken it since.
    has_commit: bool,
    end: Option<End>,
}

impl Stream {
    /// One that is being set up over `conn`.
    pub fn new(role: Role, token: Token, secret: Secret, peer: SocketAddr, conn: ConnId) -> Self {
        Self {
            token,
            secret,
            role,
            peer,
            conn: Some(conn),
            caller: None,
            asks_over: None,
            phase: Phase::Setup,
            attempt: 0,
            is_resuming: false,
            is_known: role == Role::Accepts,
            has_replied: false,
            receives_recovery: false,
            failure: None,
            kept_until: None,
            closed: None,
            is_doubted: false,
            acknowledged: None,
            silence: Silence::default(),
            inbox: VecDeque::new(),
            has_commit: false,
            end: None,
        }
    }

    /// Where a control connection is dialled: for this stream, or to ask the peer to dial one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.role {
            Role::Dials => Some(self.peer),
            Role::Accepts => self.caller,
        }
    }

    /// Keeps a frame for the owner.
    ///
    /// # Errors
    /// The peer sends more frames than the protocol has.
    pub fn push(&mut self, frame: Frame) -> Result<(), End> {
        if self.inbox.len() >= MAX_INBOX && !self.supersede(frame.kind) {
            return Err(End::Wrong(format!("more than {MAX_INBOX} control messages at once")));
        }
        self.has_commit |= frame.kind == Kind::Commit;
        self.inbox.push_back(frame);
        Ok(())
    }

    /// Makes room for a frame of recovery, whose kind replaces earlier ones. NCCL may take hours to ask for a connection whose peer has
    /// committed.
    fn supersede(&mut self, kind: Kind) -> bool {
        let earlier = self.inbox.iter().position(|kept| kept.kind == kind).filter(|_| kind.is_of_recovery());
        earlier.and_then(|earlier| self.inbox.remove(earlier)).is_some()
    }

    /// What the owner receives next.
    pub fn poll_received(&mut self) -> Received {
        match (self.inbox.pop_front(), &self.end) {
            (Some(frame), _) => Received::Frame(frame),
            (None, Some(end)) => Received::End(end.clone()),
            (None, None) => Received::Nothing,
        }
    }

    /// Whether the peer has committed, and the owner has not received it yet.
    pub fn is_committed(&self) -> bool {
        self.inbox.iter().any(|frame| frame.kind == Kind::Commit)
    }

    /// The peer has committed, as its resumption implies: the commit itself may be lost.
    pub fn imply_commit(&mut self) {
        if !std::mem::replace(&mut self.has_commit, true) {
            self.inbox.push_back(Frame { kind: Kind::Commit, secret: self.secret, body: Vec::new() });
        }
    }

    /// Whether the peer has sent its last frame, which the owner receives last.
    pub fn has_farewell(&self) -> bool {
        self.inbox.iter().any(|frame| frame.kind == Kind::Goodbye)
    }

    /// Its control connection has ended so.
    pub fn handle_closed(&mut self, now: Time, end: &End) {
        if *end == End::Closed {
            self.closed.get_or_insert(now);
        }
    }

    /// No more will come.
    pub fn handle_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// How its control connection has ended, unless it has another one.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Frames that it keeps.
    #[cfg(any(test, fuzzing))]
    pub fn inbox_len(&self) -> usize {
        self.inbox.len()
    }
}
