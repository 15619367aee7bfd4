//! Receivers of what happens at the other end of an established connection: the end's state, its
//! recovery, and the explainer.

use crate::proto::control::event::PeerChange;
use crate::proto::frame::Frame;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The state of an established connection.
pub trait PeerObserver: Debug + Send + Sync {
    /// Handles a change at the peer, under the driver's lock. Returns the handler that it passed
    /// the change to. The caller drops that without the lock, since it may be the last reference.
    fn handle_change(&self, change: PeerChange) -> Option<Arc<dyn RecoveryEvents>>;
}

/// Recovers one connection. Calls come in the order of events, one at a time, under the lock of the
/// [driver](crate::net::control::driver). They record the event and wake a thread. They must not
/// call the control connection, nor take a lock whose holder does.
pub trait RecoveryEvents: Debug + Send + Sync {
    /// Handles a frame from the peer, which [is of
    /// recovery](crate::proto::frame::Kind::is_of_recovery).
    fn handle_frame(&self, frame: Frame);

    /// Handles a failed completion queue of the connection. Called by the device's watcher.
    fn handle_fault(&self, reason: &str);

    /// The control connection is lost or back, or the peer is gone; never a [`PeerChange::Frame`].
    /// [`PeerState`](crate::net::peer::state::PeerState) is updated already. The exception is
    /// [`PeerChange::Back`] without an earlier loss: this end may have missed frames even so.
    fn handle_change(&self, change: &PeerChange);
}

/// There is no room for more.
#[derive(Debug)]
pub struct Full;

/// The most changes kept while there is no handler, for a connection that was just set up.
const MAX_HELD: usize = 64;

/// The receiver of one connection's recovery events. It stays locked during the calls, to keep their
/// order.
#[derive(Debug)]
pub struct RecoverySlot(Mutex<RecoveryHandler>);

#[derive(Debug)]
enum RecoveryHandler {
    /// The connection is not recovered.
    Ignored,
    /// There is no handler yet: the changes so far, and the latest failure of a completion queue.
    Held(Vec<PeerChange>, Option<String>),
    /// This handler receives them, as long as it lives.
    Handled(Weak<dyn RecoveryEvents>),
}

impl RecoverySlot {
    /// The slot of a connection, which is recovered if `failover` is negotiated.
    pub fn new(failover: bool) -> Self {
        Self(Mutex::new(if failover {
            RecoveryHandler::Held(Vec::new(), None)
        } else {
            RecoveryHandler::Ignored
        }))
    }

    /// Passes `change` to the handler and returns it, or keeps the change until there is a handler.
    ///
    /// # Errors
    /// Too many changes are kept already.
    pub fn push(&self, change: PeerChange) -> Result<Option<Arc<dyn RecoveryEvents>>, Full> {
        match &mut *self.lock() {
            RecoveryHandler::Ignored => Ok(None),
            RecoveryHandler::Held(held, _) if held.len() >= MAX_HELD => Err(Full),
            RecoveryHandler::Held(held, _) => {
                held.push(change);
                Ok(None)
            }
            RecoveryHandler::Handled(handler) => {
                Ok(handler.upgrade().inspect(|handler| hand_over(handler.as_ref(), change)))
            }
        }
    }

    /// Passes changes to `handler` from now on, first the earlier ones.
    pub fn open(&self, handler: Weak<dyn RecoveryEvents>) {
        let mut slot = self.lock();
        let Some(living) = handler.upgrade() else { return };
        if let RecoveryHandler::Held(held, fault) =
            std::mem::replace(&mut *slot, RecoveryHandler::Handled(handler))
        {
            held.into_iter().for_each(|change| hand_over(living.as_ref(), change));
            fault.iter().for_each(|reason| living.handle_fault(reason));
        }
    }

    /// Starts recovery from a failed completion queue, now or when there is a handler. Returns
    /// whether the connection recovers.
    pub fn handle_fault(&self, reason: &str) -> bool {
        let handler = match &mut *self.lock() {
            RecoveryHandler::Handled(handler) => handler.upgrade(),
            RecoveryHandler::Held(_, fault) => {
                *fault = Some(reason.to_owned());
                return true;
            }
            RecoveryHandler::Ignored => None,
        };
        handler.inspect(|handler| handler.handle_fault(reason)).is_some()
    }

    /// Whether there is a handler, or will be one.
    pub fn is_heard(&self) -> bool {
        match &*self.lock() {
            RecoveryHandler::Handled(handler) => handler.strong_count() > 0,
            RecoveryHandler::Held(..) => true,
            RecoveryHandler::Ignored => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, RecoveryHandler> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hand_over(handler: &dyn RecoveryEvents, change: PeerChange) {
    match change {
        PeerChange::Frame(frame) => handler.handle_frame(frame),
        change => handler.handle_change(&change),
    }
}

/// Answers questions for the ends of a process.
pub trait InquiryEvents: Debug + Send + Sync {
    /// Handles a question or answer of the peer of end `end`. Called under the lock of the
    /// [driver](crate::net::control::driver): records it and wakes a thread, and must not call the
    /// control connection.
    fn handle_frame(&self, end: u64, frame: &Frame);
}

/// The receiver of inquiries for one end. Earlier frames are dropped: the peer asks again.
#[derive(Debug, Default)]
pub struct InquirySlot(Mutex<Option<(u64, Weak<dyn InquiryEvents>)>>);

impl InquirySlot {
    /// Passes frames to `handler` from now on, with the number `end`.
    pub fn open(&self, end: u64, handler: Weak<dyn InquiryEvents>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, handler));
    }

    /// Passes `frame` to the handler.
    pub fn hand_over(&self, frame: &Frame) {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((end, handler)) =
            slot.as_ref().and_then(|(end, handler)| Some((*end, handler.upgrade()?)))
        {
            handler.handle_frame(end, frame);
        }
    }
}
