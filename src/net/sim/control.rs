//! The control connection between the two ends: who has said goodbye, what is lost, who has died.
//! The ends' [`PeerState`]s are told what [`crate::proto::control`] would tell them.

use super::ends::End;
use super::fabric::{FLUSHED, REMOTE_ACCESS_ERROR};
use crate::error::Error;
use crate::net::control::observers::PeerObserver;
use crate::net::peer::state::PeerState;
use crate::proto::control::event::PeerChange;
use crate::verbs::status::Status;
use std::collections::VecDeque;
use std::sync::Arc;

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

#[derive(Debug)]
struct Side {
    peer: Arc<PeerState>,
    /// Goodbyes on their way to this end: in good order, or of a failure.
    frames: VecDeque<Cause>,
    /// Whether this end will notice that the connection is lost, or that the peer has died.
    unnoticed: Option<PeerChange>,
    /// Whether the peer has been told that this end has failed, unless there was no connection.
    has_failed: bool,
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
    pub(super) fn new(peers: &[Arc<PeerState>; 2]) -> Self {
        let side = |peer: &Arc<PeerState>| Side {
            peer: Arc::clone(peer),
            frames: VecDeque::new(),
            unnoticed: None,
            has_failed: false,
            is_there: true,
            lives: true,
        };
        Self {
            sides: peers.each_ref().map(side),
            is_connected: true,
            is_reachable: true,
            is_redialled: false,
        }
    }

    /// To be called after each call into `end`: if that has failed, the other end is told.
    pub(super) fn handle_call(&mut self, end: End) {
        let side = &mut self.sides[end as usize];
        if side.is_there && side.peer.is_broken() && !std::mem::replace(&mut side.has_failed, true)
        {
            self.say(end, Cause::PeerFailed);
        }
    }

    /// `end` has closed.
    pub(super) fn close(&mut self, end: End) {
        self.handle_call(end);
        if !self.sides[end as usize].has_failed {
            self.say(end, Cause::PeerClosed);
        }
        self.sides[end as usize].is_there = false;
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
        if let Some(cause) = side.frames.pop_front() {
            self.tell(end, goodbye(cause));
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
            return self.tell(End::Sender, goodbye(Cause::PeerClosed));
        }
        self.is_connected = true;
        for end in End::BOTH {
            let side = &mut self.sides[end as usize];
            side.unnoticed = None;
            let has_failed = side.has_failed;
            self.tell(end, PeerChange::Back);
            if has_failed {
                self.say(end, Cause::PeerFailed);
            }
        }
    }

    fn say(&mut self, from: End, goodbye: Cause) {
        if self.is_connected {
            self.sides[from.other() as usize].frames.push_back(goodbye);
        }
    }

    fn tell(&mut self, end: End, change: PeerChange) {
        let side = &mut self.sides[end as usize];
        // That the peer has failed is not said back.
        side.has_failed |= matches!(change, PeerChange::Broken(_));
        drop(side.peer.handle_change(change));
    }
}

fn goodbye(cause: Cause) -> PeerChange {
    match cause {
        Cause::PeerClosed => PeerChange::Closed(cause.text()),
        _ => PeerChange::Broken(cause.text()),
    }
}
