//! Who is told of the other end of an established connection.

use super::recovery_events::RecoveryEvents;
use crate::proto::control::event::PeerChange;
use std::fmt::Debug;
use std::sync::Arc;

/// An established connection's state.
pub(super) trait Told: Debug + Send + Sync {
    /// Something is known newly of the peer. Called under the driver's lock. Who has been told in turn is returned, to be dropped
    /// without that lock: nobody else may have it any more.
    fn handle_change(&self, change: PeerChange) -> Option<Arc<dyn RecoveryEvents>>;
}
