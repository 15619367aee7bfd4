//! The parts of the crate that only the tests in `tests/` use; they use [`crate::inspect`] too. No
//! interface for others.

/// What Ferrite and libibverbs have to agree on.
pub mod layouts {
    pub use crate::verbs::{extended_call, sys as verbs};
}

/// What is written beside NCCL's log.
pub mod explain {
    pub use crate::net::explain::output::is_shown_by_all;
}

/// The control plane, and what is known of a peer.
pub mod control {
    pub use crate::net::control::{driver, observers, stream};
    pub use crate::net::peer::state::PeerState;
}

/// The protocol's messages.
pub mod proto {
    pub use crate::proto::control::event;
    pub use crate::proto::{frame, handle, handshake};
}
