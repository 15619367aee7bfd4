//! What the recovery of a connection receives over the control connection.

use crate::proto::control::event::PeerChange;
use crate::proto::frame::Frame;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What recovers one connection. The calls come in the order in which things have happened, one at a time, and under the lock of the
/// [driver](super::driver): they note what has come and wake a thread. They call nothing of the control connection, and take no lock
/// that anybody holds who does.
pub trait RecoveryEvents: Debug + Send + Sync {
    /// The peer has sent this frame, which [is of recovery](crate::proto::frame::Kind::is_of_recovery).
    fn handle_frame(&self, frame: Frame);

    /// A completion queue of the connection has failed, for this reason. Called by the device's watcher.
    fn handle_fault(&self, reason: &str);

    /// The control connection is lost or back, or the peer is gone. [`PeerState`](super::peer_state::PeerState) knows already, except
    /// for [`PeerChange::Back`] after no loss: then this end may have missed frames all the same. Never a [`PeerChange::Frame`].
    fn handle_change(&self, change: &PeerChange);
}

/// There is no room for more.
#[derive(Debug)]
pub(super) struct Full;

/// The most changes that are kept while there is no handler: of a connection that has just been set up.
const MAX_HELD: usize = 64;

/// The way to what recovers one connection. It is locked while that is called, so that the order is kept.
#[derive(Debug)]
pub(super) struct RecoveryInbox(Mutex<Inbox>);

#[derive(Debug)]
enum Inbox {
    /// The connection is not recovered.
    Ignored,
    /// There is no handler yet; what has come until now, and the latest failure of a completion queue.
    Held(Vec<PeerChange>, Option<String>),
    /// This one receives them, as long as it lives.
    Handled(Weak<dyn RecoveryEvents>),
}

impl RecoveryInbox {
    /// That of a connection which is to be recovered, if `failover` has been negotiated.
    pub(super) fn new(failover: bool) -> Self {
        Self(Mutex::new(if failover { Inbox::Held(Vec::new(), None) } else { Inbox::Ignored }))
    }

    /// Hands `change` over, and returns the handler; or keeps it until there is a handler.
    ///
    /// # Errors
    /// So much is kept that there is no room for more.
    pub(super) fn push(&self, change: PeerChange) -> Result<Option<Arc<dyn RecoveryEvents>>, Full> {
        match &mut *self.lock() {
            Inbox::Ignored => Ok(None),
            Inbox::Held(held, _) if held.len() >= MAX_HELD => Err(Full),
            Inbox::Held(held, _) => {
                held.push(change);
                Ok(None)
            }
            Inbox::Handled(handler) => Ok(handler.upgrade().inspect(|handler| hand_over(handler.as_ref(), change))),
        }
    }

    /// From now on `handler` receives what comes; first what has come before.
    pub(super) fn open(&self, handler: Weak<dyn RecoveryEvents>) {
        let mut inbox = self.lock();
        let Some(living) = handler.upgrade() else { return };
        if let Inbox::Held(held, fault) = std::mem::replace(&mut *inbox, Inbox::Handled(handler)) {
            held.into_iter().for_each(|change| hand_over(living.as_ref(), change));
            fault.iter().for_each(|reason| living.handle_fault(reason));
        }
    }

    /// Has the connection recovered from the failure of a completion queue, now or when there is a handler; whether anybody does that.
    pub(super) fn handle_fault(&self, reason: &str) -> bool {
        let handler = match &mut *self.lock() {
            Inbox::Handled(handler) => handler.upgrade(),
            Inbox::Held(_, fault) => {
                *fault = Some(reason.to_owned());
                return true;
            }
            Inbox::Ignored => None,
        };
        handler.inspect(|handler| handler.handle_fault(reason)).is_some()
    }

    /// Whether there is a handler, or will be one.
    pub(super) fn is_heard(&self) -> bool {
        match &*self.lock() {
            Inbox::Handled(handler) => handler.strong_count() > 0,
            Inbox::Held(..) => true,
            Inbox::Ignored => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hand_over(handler: &dyn RecoveryEvents, change: PeerChange) {
    match change {
        PeerChange::Frame(frame) => handler.handle_frame(frame),
        change => handler.handle_change(&change),
    }
}
