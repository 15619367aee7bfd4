//! What the explainer needs of a communicator.

use crate::net::peer::state::PeerState;
use crate::proto::explain::snapshot::EndCheck;
pub use crate::stats::labels::Labels;
use std::fmt::Debug;
use std::sync::Arc;

/// One end of a connection.
pub trait ExplainedEnd: Debug + Send + Sync {
    /// The present state, unless a thread is inside.
    fn check(&self) -> EndCheck;

    /// The peer.
    fn peer(&self) -> &Arc<PeerState>;

    /// The name of the device that it uses.
    fn device(&self) -> &str;

    /// The labels of NCCL's communicator and operation in its record.
    fn labels(&self) -> &Labels;
}
