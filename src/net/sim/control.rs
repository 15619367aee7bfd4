//! The control connection between the two ends: goodbyes, losses, and deaths. It reports to the
//! ends' [`PeerState`]s as [`crate::proto::control`] does.

use super::fabric::{End, FLUSHED, REMOTE_ACCESS_ERROR};
use crate::error::Error;
use crate::net::control::observers::PeerObserver;
use crate::net::control::stream::PeerStream;
use crate::net::peer::state::PeerState;
use crate::proto::control::event::PeerChange;
use crate::proto::frame::{Frame, Kind};
use crate::verbs::status::Status;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The error that an end reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// One of its work requests has failed.
    WorkRequest(Status),
    /// The peer has said that it has failed.
    PeerFailed,
    PeerClosed,
    PeerDied,
}

impl Cause {
    const OF_PEER: [(Self, &'static str); 3] = [
        (Self::PeerFailed, "SIMULATED-FAILURE"),
        (Self::PeerClosed, "SIMULATED-CLOSING"),
        (Self::PeerDied, "SIMULATED-DEATH"),
    ];

    /// What an end reports as `error`.
    pub(super) fn of(error: &Error) -> Self {
        let text = error.text();
        let statuses = [Status::RETRY_EXCEEDED, REMOTE_ACCESS_ERROR, FLUSHED];
        let status = statuses.into_iter().find(|status| text.contains(&status.to_string()));
        let of_peer = || {
            Self::OF_PEER.into_iter().find(|(_, word)| text.contains(word)).map(|(cause, _)| cause)
        };
        let cause = status.map(Self::WorkRequest).or_else(of_peer);
        cause.unwrap_or_else(|| panic!("an error that no fault explains: {text}"))
    }

    fn text(self) -> String {
        let known = Self::OF_PEER.into_iter().find(|(cause, _)| *cause == self);
        known.map(|(_, word)| word.to_owned()).unwrap_or_default()
    }
}

/// What an end says on its control connection.
#[derive(Debug)]
enum Said {
    Frame(Kind, Vec<u8>),
    /// In good order, or of a failure.
    Goodbye(Cause, String),
}

/// An end's side of the control connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Stream(Arc<(AtomicBool, Mutex<Vec<Said>>)>);

impl Stream {
    fn push(&self, said: Said) {
        let (is_any, all) = &*self.0;
        all.lock().unwrap_or_else(PoisonError::into_inner).push(said);
        is_any.store(true, Ordering::Relaxed);
    }

    /// The frames and the goodbye since the last call.
    fn take(&self) -> Vec<Said> {
        let (is_any, all) = &*self.0;
        if !is_any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        is_any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PeerStream for Stream {
    fn establish(&self, _: &Arc<dyn PeerObserver>, _: bool) {}

    fn send(&self, kind: Kind, body: Vec<u8>) {
        self.push(Said::Frame(kind, body));
    }

    fn handle_acknowledged(&self) {}

    fn fail(&self, reason: &str) {
        self.push(Said::Goodbye(Cause::PeerFailed, reason.to_owned()));
    }
}

#[derive(Debug)]
struct Side {
    peer: Arc<PeerState>,
    stream: Stream,
    /// What is on its way to this end.
    frames: VecDeque<Said>,
    /// Whether this end will notice that the connection is lost, or that the peer has died.
    unnoticed: Option<PeerChange>,
    /// Why this end has failed. The peer knows it, unless there was no connection.
    failure: Option<String>,
    /// Whether its process is there and has not closed the connection.
    is_there: bool,
    /// Whether its process is there.
    lives: bool,
}

#[derive(Debug)]
pub(super) struct Control {
    sides: [Side; 2],
    is_connected: bool,
    /// Whether an end can dial the other.
    is_reachable: bool,
    /// Whether the sender, which has dialled it, dials again.
    is_redialled: bool,
}

impl Control {
    pub(super) fn new(peers: [(Arc<PeerState>, Stream); 2]) -> Self {
        let side = |(peer, stream)| Side {
            peer,
            stream,
            frames: VecDeque::new(),
            unnoticed: None,
            failure: None,
            is_there: true,
            lives: true,
        };
        Self { sides: peers.map(side), is_connected: true, is_reachable: true, is_redialled: false }
    }

    /// To be called after each call into `end`: sends its frames on their way, and returns them.
    pub(super) fn handle_call(&mut self, end: End) -> Vec<(Kind, Vec<u8>)> {
        let mut frames = Vec::new();
        for said in self.sides[end as usize].stream.take() {
            let side = &mut self.sides[end as usize];
            match &said {
                _ if !side.is_there => continue,
                Said::Frame(kind, body) => frames.push((*kind, body.clone())),
                Said::Goodbye(..) if side.failure.is_some() => continue,
                Said::Goodbye(_, why) => side.failure = Some(why.clone()),
            }
            self.say(end, said);
        }
        frames
    }

    /// `end` has closed.
    pub(super) fn close(&mut self, end: End) {
        self.handle_call(end);
        if self.sides[end as usize].failure.is_none() {
            self.say(end, Said::Goodbye(Cause::PeerClosed, String::new()));
        }
        self.sides[end as usize].is_there = false;
    }

    /// Whether an end can dial the other.
    pub(super) fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    /// Whether the ends are connected, and nothing is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        let is_quiet = |side: &Side| side.frames.is_empty() && side.unnoticed.is_none();
        self.is_connected && self.sides.iter().all(is_quiet)
    }

    /// Whether something waits for an end.
    pub(super) fn has_news(&self, end: End) -> bool {
        let side = &self.sides[end as usize];
        !side.frames.is_empty() || side.unnoticed.is_some()
    }

    /// The process of `end` is killed. Its kernel closes the connection, unless the host dies with
    /// it.
    pub(super) fn kill(&mut self, end: End, with_host: bool) {
        let side = &mut self.sides[end as usize];
        (side.is_there, side.lives) = (false, false);
        if with_host {
            self.is_reachable = false;
            self.lose();
        } else if self.is_connected {
            self.is_connected = false;
            self.sides[end.other() as usize].unnoticed =
                Some(PeerChange::Broken(Cause::PeerDied.text()));
        }
    }

    /// The connection is reset.
    pub(super) fn lose(&mut self) {
        if std::mem::take(&mut self.is_connected) {
            for side in &mut self.sides {
                side.frames.clear();
                side.unnoticed = Some(PeerChange::Lost("the control connection is lost".into()));
            }
        }
    }

    /// What drives the control connections of `end` runs: takes in the next frame, or the end of
    /// the connection, or dials again, if it `may_dial` now.
    pub(super) fn watch(&mut self, end: End, may_dial: bool) {
        let side = &mut self.sides[end as usize];
        if let Some(said) = side.frames.pop_front() {
            self.tell(end, change(said));
        } else if let Some(change) = side.unnoticed.take() {
            // After a goodbye the end of the connection says nothing new.
            if !side.peer.is_gone() {
                self.is_redialled |= end == End::Sender && matches!(change, PeerChange::Lost(_));
                self.tell(end, change);
            }
        } else if may_dial
            && end == End::Sender
            && self.is_redialled
            && self.is_reachable
            && side.is_there
        {
            self.redial();
        }
    }

    fn redial(&mut self) {
        self.is_redialled = false;
        let receiver = &self.sides[1];
        if !receiver.lives {
            return self.tell(End::Sender, PeerChange::Broken(Cause::PeerDied.text()));
        }
        if !receiver.is_there {
            let failure = receiver.failure.clone();
            let failed = failure.map(|why| Said::Goodbye(Cause::PeerFailed, why));
            let closed = || Said::Goodbye(Cause::PeerClosed, String::new());
            return self.tell(End::Sender, change(failed.unwrap_or_else(closed)));
        }
        self.is_connected = true;
        for end in End::BOTH {
            let side = &mut self.sides[end as usize];
            side.unnoticed = None;
            let failure = side.failure.clone();
            self.tell(end, PeerChange::Back);
            if let Some(why) = failure {
                self.say(end, Said::Goodbye(Cause::PeerFailed, why));
            }
        }
    }

    fn say(&mut self, from: End, said: Said) {
        if self.is_connected {
            self.sides[from.other() as usize].frames.push_back(said);
        }
    }

    fn tell(&mut self, end: End, change: PeerChange) {
        let side = &mut self.sides[end as usize];
        // That the peer has failed is not said back.
        if let PeerChange::Broken(why) = &change {
            side.failure.get_or_insert_with(|| why.clone());
        }
        drop(side.peer.handle_change(change));
    }
}

fn change(said: Said) -> PeerChange {
    match said {
        Said::Frame(kind, body) => PeerChange::Frame(Frame { kind, secret: [2; 16], body }),
        Said::Goodbye(Cause::PeerClosed, _) => PeerChange::Closed(Cause::PeerClosed.text()),
        Said::Goodbye(cause, why) => PeerChange::Broken(format!("{}: {why}", cause.text())),
    }
}
