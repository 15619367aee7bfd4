//! What is known of the peer of one connection: its name, whether it still lives, and the way to it.
//!
//! When the line is lost, that says nothing of the peer: the data goes another way. The end that dialled dials again
//! ([`super::redial`]), and both ask their devices now and then whether the peer's still acknowledges ([`crate::net::data::probe`]).

use super::channel::Channel;
use super::line::{End, Line, tell};
use super::lines::Lines;
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::{Secret, Token};
use crate::proto::handshake::Resume;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a connection stands; of two states the later one in this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct State(u8);

impl State {
    /// Both sides are there.
    const OPEN: Self = Self(0);
    /// The line is lost, and nothing tells at present whether the peer is there.
    const LOST: Self = Self(1);
    /// The peer has closed, as one does when all is done. What is under way may still be acknowledged by its device.
    const CLOSED: Self = Self(2);
    /// The peer has died or given up, or the device is lost. Nothing will come of what is under way.
    const BROKEN: Self = Self(3);

    /// Whether all is well.
    #[inline]
    pub fn is_open(self) -> bool {
        self == Self::OPEN
    }

    /// Whether the peer has closed, died or given up, or the device is lost: nothing new will come of it.
    #[inline]
    pub fn is_gone(self) -> bool {
        self >= Self::CLOSED
    }
}

/// The control side of a connection. Its line tells it what comes; the data path looks at one number.
#[derive(Debug)]
pub struct Link {
    peer: String,
    secret: Secret,
    state: AtomicU8,
    /// Why the connection cannot go on, or that the line is lost; empty while all is well.
    reason: Mutex<String>,
    /// What dials again, on the side that has dialled.
    lines: Option<Arc<Lines>>,
    way: Mutex<Way>,
}

#[derive(Debug)]
struct Way {
    channel: Channel,
    /// The greatest number of a [`Resume`] that has been heeded.
    attempt: u32,
}

impl Link {
    /// A link to the peer called `peer`, at the other end of `channel`, which one of `lines` has dialled.
    pub fn dialled(peer: String, secret: Secret, channel: Channel, lines: &Arc<Lines>) -> Arc<Self> {
        Self::open(peer, secret, channel, Some(Arc::clone(lines)))
    }

    /// A link to the peer called `peer`, which has dialled; with the `secret` of its hello it may do so again.
    pub fn accepted(peer: String, secret: Secret, channel: Channel) -> Arc<Self> {
        Self::open(peer, secret, channel, None)
    }

    fn open(peer: String, secret: Secret, channel: Channel, lines: Option<Arc<Lines>>) -> Arc<Self> {
        let (state, reason) = (AtomicU8::new(State::OPEN.0), Mutex::default());
        let link = Arc::new(Self { peer, secret, state, reason, lines, way: Mutex::new(Way { channel, attempt: 0 }) });
        let way = link.way();
        if let Some(reception) = way.channel.line().reception() {
            reception.remember(secret, way.channel.token(), &link);
        }
        let news = way.channel.attach(&link);
        drop(way);
        tell(news);
        link
    }

    /// The peer's device, host and process, and its address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// How it stands.
    #[inline]
    pub fn state(&self) -> State {
        // Acquire pairs with the Release in `end`: the reason is there.
        State(self.state.load(Ordering::Acquire))
    }

    /// Whether the peer has closed, died or given up, or the device is lost: nothing new will come of it.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.state().is_gone()
    }

    /// Whether there is no hope for what is under way either.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.state() == State::BROKEN
    }

    /// Whether the line is lost, and nothing else is known.
    pub fn is_lost(&self) -> bool {
        self.state() == State::LOST
    }

    /// Why; empty while all is well.
    pub fn reason(&self) -> String {
        self.lock().clone()
    }

    /// What it hears of the peer by.
    pub fn line(&self) -> Arc<Line> {
        Arc::clone(self.way().channel.line())
    }

    /// What dials again, if that is this end's part.
    pub(in crate::net) fn lines(&self) -> Option<&Arc<Lines>> {
        self.lines.as_ref()
    }

    /// The token of the listener that made the connection.
    pub(in crate::net) fn token(&self) -> Token {
        self.way().channel.token()
    }

    /// What the peer is told on another line, at the next attempt after `attempt`.
    pub(in crate::net) fn resumption(&self, attempt: u32) -> Resume {
        Resume { secret: self.secret, attempt: self.way().attempt.max(attempt).saturating_add(1) }
    }

    /// Ends the connection from this side for `reason`, which the peer is told as well.
    pub fn fail(&self, reason: &str) {
        // Both under the lock: if the connection moves to another line meanwhile, the peer is told there.
        let way = self.way();
        self.end(State::BROKEN, reason);
        way.channel.goodbye(reason);
    }

    /// From now on `channel` is the way to the peer, unless a later attempt than `attempt` has been heeded; whether it is.
    /// The end that has not dialled says so to the other one. The peer is told if this end has failed meanwhile.
    pub(in crate::net) fn resume(self: &Arc<Self>, channel: Channel, attempt: u32) -> bool {
        let mut way = self.way();
        if attempt <= way.attempt {
            drop(way);
            channel.forsake();
            return false;
        }
        way.attempt = attempt;
        let old = std::mem::replace(&mut way.channel, channel);
        if self.lines.is_none() {
            way.channel.send(Kind::Resume, Vec::new());
        }
        self.recover();
        let news = way.channel.attach(self);
        if self.is_gone() {
            way.channel.goodbye(&self.reason());
        }
        drop(way);
        // The peer may hear of the old line's end much later, and what is said there would be of the past.
        old.forsake();
        tell(news);
        true
    }

    /// The peer has said something.
    pub(in crate::net) fn handle_frame(&self, frame: &Frame) {
        match frame.kind {
            Kind::Goodbye if frame.body.is_empty() => self.end(State::CLOSED, "the peer has closed the connection"),
            Kind::Goodbye => self.end(State::BROKEN, &format!("the peer gave up: {}", frame.body_text())),
            kind => self.end(State::BROKEN, &format!("the peer sent an unexpected {kind:?}")),
        }
    }

    /// `line` has ended, and the peer had not said goodbye. If the connection has gone on on another one, that is nothing.
    pub(in crate::net) fn handle_end(&self, line: *const Line, end: &End) {
        let way = self.way();
        if !std::ptr::eq(Arc::as_ptr(way.channel.line()), line) {
            return;
        }
        match end {
            // The data goes another way: as long as that holds, nobody is harmed.
            End::Lost(why) => self.end(State::LOST, &format!("the control connection was lost before ({why})")),
            End::Closed | End::Unreachable(_) => self.end(State::BROKEN, DEAD),
            End::Wrong(why) => self.end(State::BROKEN, why),
            End::Refused(why) => self.end(State::BROKEN, &format!("the peer gave up: {why}")),
        }
    }

    /// The peer's port is closed.
    pub(in crate::net) fn handle_death(&self) {
        self.end(State::BROKEN, DEAD);
    }

    /// The peer's process, or another one at its port, does not know the connection. The peer may have closed it in good
    /// order, so what is under way is left to the device.
    pub(in crate::net) fn handle_unknown(&self, why: &str) {
        self.end(State::CLOSED, &format!("the peer has closed the connection, or has died ({why})"));
    }

    fn end(&self, state: State, reason: &str) {
        let mut told = self.lock();
        let now = self.state();
        if state <= now {
            return;
        }
        if !now.is_gone() {
            reason.clone_into(&mut told);
        }
        self.state.store(state.0, Ordering::Release);
    }

    /// The line is there again.
    fn recover(&self) {
        let mut told = self.lock();
        if self.is_lost() {
            told.clear();
            self.state.store(State::OPEN.0, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const DEAD: &str = "the peer's process has died";
