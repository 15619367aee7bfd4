//! What receives the changes at the other end of an established connection, and what the peer says over the control connection: the end's
//! state, its recovery, and what answers questions about waits.

use crate::proto::control::event::PeerChange;
use crate::proto::frame::Frame;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An established connection's state.
pub trait PeerObserver: Debug + Send + Sync {
    /// A change at the peer. Called under the driver's lock. What it has been passed on to is returned, to be dropped without that
    /// lock: this may be its last reference.
    fn handle_change(&self, change: PeerChange) -> Option<Arc<dyn RecoveryEvents>>;
}

/// What recovers one connection. The calls come in the order in which things have happened, one at a time, and under the lock of the
/// [driver](crate::net::control::driver): they note what has come and wake a thread. They call nothing of the control connection, and take no lock
/// that anybody holds who does.
pub trait RecoveryEvents: Debug + Send + Sync {
    /// The peer has sent this frame, which [is of recovery](crate::proto::frame::Kind::is_of_recovery).
    fn handle_frame(&self, frame: Frame);

    /// A completion queue of the connection has failed, for this reason. Called by the device's watcher.
    fn handle_fault(&self, reason: &str);

    /// The control connection is lost or back, or the peer is gone. [`PeerState`](crate::net::peer::state::PeerState) knows already, except
    /// for [`PeerChange::Back`] after no loss: then this end may have missed frames all the same. Never a [`PeerChange::Frame`].
    fn handle_change(&self, change: &PeerChange);
}

/// There is no room for more.
#[derive(Debug)]
pub struct Full;

/// The most changes that are kept while there is no handler: of a connection that has just been set up.
const MAX_HELD: usize = 64;

/// The way to what recovers one connection. It is locked while that is called, so that the order is kept.
#[derive(Debug)]
pub struct RecoveryInbox(Mutex<Inbox>);

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
    pub fn new(failover: bool) -> Self {
        Self(Mutex::new(if failover { Inbox::Held(Vec::new(), None) } else { Inbox::Ignored }))
    }

    /// Hands `change` over, and returns the handler; or keeps it until there is a handler.
    ///
    /// # Errors
    /// So much is kept that there is no room for more.
    pub fn push(&self, change: PeerChange) -> Result<Option<Arc<dyn RecoveryEvents>>, Full> {
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
    pub fn open(&self, handler: Weak<dyn RecoveryEvents>) {
        let mut inbox = self.lock();
        let Some(living) = handler.upgrade() else { return };
        if let Inbox::Held(held, fault) = std::mem::replace(&mut *inbox, Inbox::Handled(handler)) {
            held.into_iter().for_each(|change| hand_over(living.as_ref(), change));
            fault.iter().for_each(|reason| living.handle_fault(reason));
        }
    }

    /// Has the connection recovered from the failure of a completion queue, now or when there is a handler; whether anybody does that.
    pub fn handle_fault(&self, reason: &str) -> bool {
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
    pub fn is_heard(&self) -> bool {
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

/// What answers for the ends of a process.
pub trait InquiryEvents: Debug + Send + Sync {
    /// The peer of the end with this number asks or tells something. Called under the lock of the [driver](crate::net::control::driver): it notes that and
    /// wakes a thread, and calls nothing of the control connection.
    fn handle_frame(&self, end: u64, frame: &Frame);
}

/// The way to what answers for one end. What comes before there is one is dropped: the peer asks again.
#[derive(Debug, Default)]
pub struct InquirySlot(Mutex<Option<(u64, Weak<dyn InquiryEvents>)>>);

impl InquirySlot {
    /// From now on `handler` receives what comes, with the number `end`.
    pub fn open(&self, end: u64, handler: Weak<dyn InquiryEvents>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, handler));
    }

    /// Hands `frame` over.
    pub fn hand_over(&self, frame: &Frame) {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((end, handler)) = slot.as_ref().and_then(|(end, handler)| Some((*end, handler.upgrade()?))) {
            handler.handle_frame(end, frame);
        }
    }
}
