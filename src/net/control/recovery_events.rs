//! What the recovery of a connection hears over the control connection.

use crate::proto::control::event::PeerChange;
use crate::proto::frame::Frame;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// What recovers one connection. The calls come in the order in which things have happened, one at a time, and under the lock of the
/// [driver](super::driver): they note what has come and wake a thread, and call nothing of the control connection.
pub trait RecoveryEvents: Debug + Send + Sync {
    /// The peer has said this, which [is of recovery](crate::proto::frame::Kind::is_of_recovery).
    fn handle_frame(&self, frame: Frame);

    /// The control connection is lost or back, or the peer is gone. [`PeerState`](super::peer_state::PeerState) knows already, except
    /// for [`PeerChange::Back`] after no loss: then this end may have missed frames all the same. Never a [`PeerChange::Frame`].
    fn handle_change(&self, change: &PeerChange);
}

/// So many changes are kept before anybody hears them: of a connection that has just been set up.
const MAX_HELD: usize = 64;

/// The way to what recovers one connection. It is locked while that is called, so that the order is kept.
#[derive(Debug, Default)]
pub(super) struct RecoveryInbox(Mutex<Inbox>);

#[derive(Debug)]
enum Inbox {
    /// Nobody hears it yet; what has come until now.
    Held(Vec<PeerChange>),
    /// This one hears it, as long as it lives.
    Handled(Weak<dyn RecoveryEvents>),
}

impl Default for Inbox {
    fn default() -> Self {
        Self::Held(Vec::new())
    }
}

impl RecoveryInbox {
    /// Hands `change` over, or keeps it until there is somebody to hear it; whether there was room.
    pub(super) fn push(&self, change: PeerChange) -> bool {
        match &mut *self.lock() {
            Inbox::Held(held) if held.len() >= MAX_HELD => return false,
            Inbox::Held(held) => held.push(change),
            Inbox::Handled(handler) => hand_over(handler, change),
        }
        true
    }

    /// From now on `handler` hears what comes; first what has come before.
    pub(super) fn open(&self, handler: Weak<dyn RecoveryEvents>) {
        let mut inbox = self.lock();
        let before = std::mem::replace(&mut *inbox, Inbox::Handled(Weak::clone(&handler)));
        if let Inbox::Held(held) = before {
            held.into_iter().for_each(|change| hand_over(&handler, change));
        }
    }

    /// Whether anybody hears it.
    pub(super) fn is_heard(&self) -> bool {
        matches!(&*self.lock(), Inbox::Handled(handler) if handler.strong_count() > 0)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hand_over(handler: &Weak<dyn RecoveryEvents>, change: PeerChange) {
    let Some(handler) = handler.upgrade() else { return };
    match change {
        PeerChange::Frame(frame) => handler.handle_frame(frame),
        change => handler.handle_change(&change),
    }
}
