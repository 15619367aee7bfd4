//! Who is told of the other end of an established connection.

use crate::proto::control::event::PeerChange;
use std::fmt::Debug;

/// An established connection's state.
pub(super) trait Told: Debug + Send + Sync {
    /// Something is known newly of the peer. Called under the driver's lock.
    fn handle_change(&self, change: PeerChange);
}
