//! What is known of the peer of one connection: its name, whether it still lives, and the way to it.

use super::channel::Channel;
use super::line::{End, Line};
use crate::proto::frame::{Frame, Kind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Both sides are there.
const OPEN: u8 = 0;
/// The peer has closed, as one does when all is done. What is under way may still be acknowledged by its device.
const CLOSED: u8 = 1;
/// The peer has died or given up, or the device is lost. Nothing will come of what is under way.
const BROKEN: u8 = 2;

/// The control side of a connection. Its line tells it what comes; the data path looks at one number.
#[derive(Debug)]
pub struct Link {
    peer: String,
    state: AtomicU8,
    /// Why the connection cannot go on; empty while it can.
    reason: Mutex<String>,
    channel: Channel,
}

impl Link {
    /// A link to the peer called `peer`, at the other end of `channel`.
    pub fn open(peer: String, channel: Channel) -> Arc<Self> {
        let link = Arc::new(Self { peer, state: AtomicU8::new(OPEN), reason: Mutex::default(), channel });
        link.channel.attach(&link);
        link
    }

    /// The peer's device, host and process, and its address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether the peer has closed, died or given up, or the device is lost: nothing new will come of it.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.state() != OPEN
    }

    /// Whether there is no hope for what is under way either.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.state() == BROKEN
    }

    #[inline]
    fn state(&self) -> u8 {
        // Acquire pairs with the Release in `end`: the reason is there.
        self.state.load(Ordering::Acquire)
    }

    /// Why; empty while all is well.
    pub fn reason(&self) -> String {
        self.lock().clone()
    }

    /// What it hears of the peer by.
    pub fn line(&self) -> &Arc<Line> {
        self.channel.line()
    }

    /// Ends the connection from this side for `reason`, which the peer is told as well.
    pub fn fail(&self, reason: &str) {
        self.channel.goodbye(reason);
        self.end(BROKEN, reason);
    }

    /// The peer has said something.
    pub(super) fn handle_frame(&self, frame: &Frame) {
        match frame.kind {
            Kind::Goodbye if frame.body.is_empty() => self.end(CLOSED, "the peer has closed the connection"),
            Kind::Goodbye => self.end(BROKEN, &format!("the peer gave up: {}", frame.body_text())),
            kind => self.end(BROKEN, &format!("the peer sent an unexpected {kind:?}")),
        }
    }

    /// The line has ended, and the peer had not said goodbye.
    pub(super) fn handle_end(&self, end: &End) {
        match end {
            // The data goes another way: as long as that holds, nobody is harmed.
            End::Lost(why) => self.end(OPEN, &format!("the control connection was lost before ({why})")),
            End::Closed | End::Unreachable(_) => self.end(BROKEN, "the peer's process has died"),
            End::Wrong(why) => self.end(BROKEN, why),
            End::Refused(why) => self.end(BROKEN, &format!("the peer gave up: {why}")),
        }
    }

    fn end(&self, state: u8, reason: &str) {
        let mut first = self.lock();
        if first.is_empty() {
            reason.clone_into(&mut first);
        }
        drop(first);
        self.state.fetch_max(state, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
