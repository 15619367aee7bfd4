//! What receives the changes at the other end of an established connection.

use super::recovery_events::RecoveryEvents;
use crate::proto::control::event::PeerChange;
use std::fmt::Debug;
use std::sync::Arc;

/// An established connection's state.
pub(in crate::net) trait PeerObserver: Debug + Send + Sync {
    /// A change at the peer. Called under the driver's lock. What it has been passed on to is returned, to be dropped without that
    /// lock: this may be its last reference.
    fn handle_change(&self, change: PeerChange) -> Option<Arc<dyn RecoveryEvents>>;
}
