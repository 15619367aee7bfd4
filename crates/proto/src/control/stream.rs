//! A stream: one RDMA connection's share of a control connection.

use super::event::{End, Received};
use super::redial::Silence;
use super::{ConnId, Time};
use crate::frame::{Frame, Kind};
use crate::handle::{Secret, Token};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The most frames in an inbox: the set-up of a connection has at most two, and its end. Between
/// commit and `accept` there may be frames of recovery; the latest of each kind counts.
pub const MAX_INBOX: usize = 8;

/// The progress of an RDMA connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It is being set up; its owner polls the inbox.
    Setup,
    /// Both ends exist; its owner receives frames of recovery, and the peer's end.
    Established,
    /// The owner has closed it while there was no control connection; the peer gets a Goodbye once
    /// there is one.
    Closing(String),
    /// One end has sent its last frame.
    Over,
}

/// Which end of the control connection dials, also after a loss. The other one may dial to ask for
/// that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamRole {
    /// This end.
    Dials,
    /// The peer.
    Accepts,
}

/// The state of one RDMA connection.
#[derive(Debug)]
pub struct Stream {
    /// The listener's token.
    pub token: Token,
    /// Identifies the stream in frames.
    pub secret: Secret,
    /// Which end dials.
    pub role: StreamRole,
    /// The other end's address.
    pub peer: SocketAddr,
    /// The control connection that carries it at present.
    pub conn: Option<ConnId>,
    /// Where the peer accepts connections, if it dials and has announced that.
    pub caller: Option<SocketAddr>,
    /// The control connection over which the peer is asked to dial.
    pub asks_over: Option<ConnId>,
    /// Its progress.
    pub phase: Phase,
    /// The highest number of a resumption that was sent or accepted.
    pub attempt: u32,
    /// Whether a resumption is unanswered.
    pub is_resuming: bool,
    /// Whether the peer may know it: a hello was sent or received.
    pub is_known: bool,
    /// Whether this end has replied: the peer may have committed since.
    pub has_replied: bool,
    /// Whether the owner of the established stream receives frames of recovery.
    pub receives_recovery: bool,
    /// The failure of this end while there was no control connection.
    pub failure: Option<String>,
    /// The deadline of a stream that was lost before it was established, or is closing.
    pub kept_until: Option<Time>,
    /// Since when its control connection is closed without life signs of the peer over another one.
    pub closed: Option<Time>,
    /// Whether its owner was notified that the peer may be dead.
    pub is_doubted: bool,
    /// When the peer's device last acknowledged something while the peer was suspected to be dead.
    pub acknowledged: Option<Time>,
    /// Looks for that, of a stream whose peer has told no port.
    pub silence: Silence,
    inbox: VecDeque<Frame>,
    /// Whether a commit was received or implied; the owner may have taken it since.
    has_commit: bool,
    end: Option<End>,
}

impl Stream {
    /// A stream in set-up over `conn`.
    pub fn new(
        role: StreamRole,
        token: Token,
        secret: Secret,
        peer: SocketAddr,
        conn: ConnId,
    ) -> Self {
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
            is_known: role == StreamRole::Accepts,
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

    /// Where to dial a control connection: for this stream, or to ask the peer to dial one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.role {
            StreamRole::Dials => Some(self.peer),
            StreamRole::Accepts => self.caller,
        }
    }

    /// Keeps a frame for the owner.
    ///
    /// # Errors
    /// The peer has sent more frames than the protocol allows.
    pub fn push(&mut self, frame: Frame) -> Result<(), End> {
        if self.inbox.len() >= MAX_INBOX && !self.supersede(frame.kind) {
            return Err(End::Wrong(format!("more than {MAX_INBOX} control messages at once")));
        }
        self.has_commit |= frame.kind == Kind::Commit;
        self.inbox.push_back(frame);
        Ok(())
    }

    /// Makes room for a frame of recovery, which replaces earlier ones of its kind. NCCL may take
    /// hours to accept a connection whose peer has committed.
    fn supersede(&mut self, kind: Kind) -> bool {
        let earlier =
            self.inbox.iter().position(|kept| kept.kind == kind).filter(|_| kind.is_of_recovery());
        earlier.and_then(|earlier| self.inbox.remove(earlier)).is_some()
    }

    /// The next input for the owner.
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
            self.inbox.push_back(Frame {
                kind: Kind::Commit,
                secret: self.secret,
                body: Vec::new(),
            });
        }
    }

    /// Whether the peer has sent its last frame, which the owner receives last.
    pub fn has_farewell(&self) -> bool {
        self.inbox.iter().any(|frame| frame.kind == Kind::Goodbye)
    }

    /// Its control connection has ended with `end`.
    pub fn handle_closed(&mut self, now: Time, end: &End) {
        if *end == End::Closed {
            self.closed.get_or_insert(now);
        }
    }

    /// Nothing more will arrive.
    pub fn handle_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// How its control connection has ended, unless it has another one.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// The frames that it keeps.
    #[cfg(any(test, feature = "simulator"))]
    pub fn inbox_len(&self) -> usize {
        self.inbox.len()
    }
}
