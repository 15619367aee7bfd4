//! What is known of the peer of one established connection: its name, and whether it still lives.
//!
//! When the control connection is lost, that says nothing of the peer: the data goes another way. The end that dialled dials
//! again ([`crate::proto::control::redial`]), and both ask their devices now and then whether the peer's still acknowledges
//! ([`crate::net::data::probe`]).

use super::stream::ControlStream;
use super::told::Told;
use crate::proto::control::event::PeerChange;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a connection stands; of two states the later one in this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct State(u8);

impl State {
    /// Both sides are there.
    const OPEN: Self = Self(0);
    /// The control connection is lost, and nothing tells at present whether the peer is there.
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

/// The control side of a connection. The [driver](super::driver) tells it what comes; the data path looks at one number.
#[derive(Debug)]
pub struct PeerState {
    peer: String,
    state: AtomicU8,
    /// Why the connection cannot go on, or that the control connection is lost; empty while all is well.
    reason: Mutex<String>,
    stream: ControlStream,
}

impl PeerState {
    /// What is known of the peer called `peer`, at the other end of `stream`. What has come before is told at once.
    pub fn new(peer: String, stream: ControlStream) -> Arc<Self> {
        let state = AtomicU8::new(State::OPEN.0);
        let this = Arc::new(Self { peer, state, reason: Mutex::default(), stream });
        let told: Arc<dyn Told> = Arc::clone(&this) as _;
        this.stream.establish(&told);
        this
    }

    /// The peer's device, host and process, and its address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// How the connection stands.
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

    /// Whether the control connection is lost, and nothing else is known.
    pub fn is_lost(&self) -> bool {
        self.state() == State::LOST
    }

    /// Why; empty while all is well.
    pub fn reason(&self) -> String {
        self.lock().clone()
    }

    /// What the peer is heard by.
    pub fn stream(&self) -> &ControlStream {
        &self.stream
    }

    /// Ends the connection from this side for `reason`, which the peer is told as well.
    pub fn fail(&self, reason: &str) {
        self.end(State::BROKEN, reason);
        self.stream.fail(reason);
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

    /// There is a control connection again.
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
}

impl Told for PeerState {
    fn handle_change(&self, change: &PeerChange) {
        match change {
            PeerChange::Lost(why) => self.end(State::LOST, why),
            PeerChange::Back => self.recover(),
            PeerChange::Closed(why) => self.end(State::CLOSED, why),
            PeerChange::Broken(why) => self.end(State::BROKEN, why),
        }
    }
}
