//! The control connection of the two ends: who has said goodbye, what is lost, who has died; as `net::control` has it.

use super::fabric::{End, Status};
use std::collections::VecDeque;

/// What one end knows of the other. Of two states the later one in this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerState {
    Open,
    /// The control connection is lost; whether the peer lives is unknown.
    Lost,
    /// The peer has closed in good order.
    Closed,
    /// The peer has died or failed, or this end has failed.
    Broken,
}

/// The error that an end reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// One of its work requests has failed.
    WorkRequest(Status),
    /// The peer has said that it has failed.
    PeerFailed,
    PeerClosed,
    PeerDied,
    /// It was closed itself with receives outstanding.
    ClosedEarly,
}

#[derive(Debug)]
struct Side {
    state: PeerState,
    cause: Option<Cause>,
    /// Goodbyes on their way to this end: in good order, or of a failure.
    frames: VecDeque<Option<Cause>>,
    /// What the loss of the connection will be to this end, which has not noticed it.
    unnoticed: Option<PeerState>,
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
    pub(super) fn new() -> Self {
        let side = || Side {
            state: PeerState::Open,
            cause: None,
            frames: VecDeque::new(),
            unnoticed: None,
            is_there: true,
            lives: true,
        };
        Self { sides: [side(), side()], is_connected: true, is_reachable: true, is_redialled: false }
    }

    pub(super) fn state(&self, end: End) -> PeerState {
        self.sides[end as usize].state
    }

    /// Why the peer of `end` is gone.
    pub(super) fn cause(&self, end: End) -> Cause {
        self.sides[end as usize].cause.expect("the peer is gone")
    }

    /// `end` has failed; the other end is told.
    pub(super) fn fail(&mut self, end: End, cause: Cause) {
        self.end(end, PeerState::Broken, cause);
        self.say(end, Some(Cause::PeerFailed));
    }

    /// `end` closes in good order.
    pub(super) fn close(&mut self, end: End) {
        if self.state(end) < PeerState::Broken {
            self.say(end, None);
        }
        self.sides[end as usize].is_there = false;
    }

    /// The process of `end` is killed. Its kernel closes the connection, unless the host dies with it.
    pub(super) fn kill(&mut self, end: End, with_host: bool) {
        let side = &mut self.sides[end as usize];
        (side.is_there, side.lives) = (false, false);
        if with_host {
            self.is_reachable = false;
            self.lose();
        } else if self.is_connected {
            self.is_connected = false;
            self.sides[end.other() as usize].unnoticed = Some(PeerState::Broken);
        }
    }

    /// The connection is reset.
    pub(super) fn lose(&mut self) {
        if std::mem::take(&mut self.is_connected) {
            for side in &mut self.sides {
                side.frames.clear();
                side.unnoticed = Some(PeerState::Lost);
            }
        }
    }

    /// The watcher of `end` runs: takes in the next frame, or the end of the connection, or dials again, if it `may_dial` now.
    pub(super) fn watch(&mut self, end: End, may_dial: bool) {
        let side = &mut self.sides[end as usize];
        if let Some(frame) = side.frames.pop_front() {
            match frame {
                None => self.end(end, PeerState::Closed, Cause::PeerClosed),
                Some(cause) => self.end(end, PeerState::Broken, cause),
            }
        } else if let Some(state) = side.unnoticed.take() {
            // After a goodbye the end of the connection says nothing new.
            if side.state < PeerState::Closed {
                self.is_redialled |= end == End::Sender && state == PeerState::Lost;
                self.end(end, state, Cause::PeerDied);
            }
        } else if may_dial && end == End::Sender && self.is_redialled && self.is_reachable && side.is_there {
            self.redial();
        }
    }

    fn redial(&mut self) {
        self.is_redialled = false;
        let receiver = &self.sides[1];
        if !receiver.lives {
            return self.end(End::Sender, PeerState::Broken, Cause::PeerDied);
        }
        if !receiver.is_there {
            return self.end(End::Sender, PeerState::Closed, Cause::PeerClosed);
        }
        self.is_connected = true;
        for end in [End::Sender, End::Receiver] {
            let side = &mut self.sides[end as usize];
            side.unnoticed = None;
            if side.state == PeerState::Lost {
                side.state = PeerState::Open;
            }
            if side.state == PeerState::Broken {
                self.say(end, Some(Cause::PeerFailed));
            }
        }
    }

    fn say(&mut self, from: End, goodbye: Option<Cause>) {
        if self.is_connected {
            self.sides[from.other() as usize].frames.push_back(goodbye);
        }
    }

    fn end(&mut self, end: End, state: PeerState, cause: Cause) {
        let side = &mut self.sides[end as usize];
        if state > side.state {
            if side.state < PeerState::Closed && state >= PeerState::Closed {
                side.cause = Some(cause);
            }
            side.state = state;
        }
    }
}
