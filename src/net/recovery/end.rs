//! What the recovery needs of a communicator.

use crate::error::Result;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::qp::fence::Drained;
use crate::net::qp::set::{InitQpSet, QpSet};
use crate::proto::rail_weights::RailWeights;
use crate::proto::recovery::missing_list::MissingList;
use crate::verbs::queue_pair::QpCaps;
use std::fmt::Debug;

/// The owner of a communicator. It lives as long as NCCL or the recovery uses it.
pub trait Owner: Debug + Send + Sync {
    /// Its communicator.
    fn end(&self) -> &dyn End;
}

/// One end of a connection. One thread at a time calls the methods, and never NCCL's.
pub trait End: Debug + Send + Sync {
    /// Its registered memory.
    fn memory(&self) -> &ConnMemory;

    /// Adds the keys of the clear-to-send ring to the description of this end. Only a sender has
    /// one.
    /// # Errors
    /// The ring cannot be registered on one of the devices.
    fn describe(&self, qps: &mut InitQpSet) -> Result<()>;

    /// Capacities of its queue pairs.
    fn caps(&self) -> QpCaps;

    /// Polls a batch of each of its completion queues to find failed work requests. Returns the
    /// number of completions.
    ///
    /// # Errors
    /// The connection has failed.
    fn poll(&self) -> Result<usize>;

    /// Polls, and probes the peer's device if a probe is due and there are queue pairs.
    ///
    /// # Errors
    /// The connection has failed.
    fn probe(&self) -> Result<()>;

    /// Whether this end would learn of arrivals now, as far as is known. The receiver reports them
    /// to the sender.
    ///
    /// # Errors
    /// NCCL's thread has panicked inside.
    fn is_reporting(&self) -> Result<bool>;

    /// Takes its queue pairs out. NCCL's calls post and poll nothing until [`Self::resume`].
    ///
    /// # Errors
    /// NCCL's thread has panicked inside.
    fn take_qps(&self) -> Result<QpSet>;

    /// Handles what had arrived on the queue pairs that were taken out.
    ///
    /// # Errors
    /// The arrivals violate the protocol.
    fn handle_drained(&self, drained: &Drained) -> Result<()>;

    /// Makes connected queue pairs ready for the peer's messages.
    ///
    /// # Errors
    /// The device refuses.
    fn prepare(&self, qps: &mut QpSet) -> Result<()>;

    /// Resumes over `qps`, on rails that begin with `weights`. The sender gets the receiver's
    /// missing list. The receiver returns its own.
    ///
    /// # Errors
    /// The missing list is invalid, a message cannot be resent, or the device refuses.
    fn resume(
        &self,
        qps: QpSet,
        weights: RailWeights,
        missing_list: Option<&MissingList>,
    ) -> Result<Option<MissingList>>;

    /// Accepts no new messages, while those in flight continue. Only called for a sender.
    ///
    /// # Errors
    /// NCCL's thread has panicked inside.
    fn drain(&self) -> Result<()>;

    /// Accepts new messages again after [`Self::drain`]. Only called for a sender.
    ///
    /// # Errors
    /// The connection ends.
    fn keep_queue_pairs(&self) -> Result<()>;

    /// Whether all messages that have begun are acknowledged. True for a receiver.
    ///
    /// # Errors
    /// NCCL's thread has panicked inside.
    fn is_drained(&self) -> Result<bool>;
}
