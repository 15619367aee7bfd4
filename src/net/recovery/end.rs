//! What the recovery needs of a communicator.

use crate::error::Result;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::qp::fence::Drained;
use crate::net::qp::set::{InitQpSet, QpSet};
use crate::proto::rail_weights::RailWeights;
use crate::proto::recovery::missing_list::MissingList;
use crate::verbs::queue_pair::QpCaps;
use std::fmt::Debug;

/// What owns a communicator, and lives as long as NCCL or the recovery uses it.
pub trait Owner: Debug + Send + Sync {
    /// Its communicator.
    fn end(&self) -> &dyn End;
}

/// One end of a connection. All methods are called by one thread at a time, which is not NCCL's.
pub trait End: Debug + Send + Sync {
    /// Its registered memory.
    fn memory(&self) -> &ConnMemory;

    /// Adds to the description of this end what only the sender knows: the keys of its ring of clear-to-sends.
    ///
    /// # Errors
    /// The ring cannot be registered on one of the devices.
    fn describe(&self, qps: &mut InitQpSet) -> Result<()>;

    /// Capacities of its queue pairs.
    fn caps(&self) -> QpCaps;

    /// Polls its completion queues, so that it finds failed work requests.
    ///
    /// # Errors
    /// The connection has failed.
    fn poll(&self) -> Result<()>;

    /// Probes the peer's device, if a probe is due and there are queue pairs, and polls.
    ///
    /// # Errors
    /// The connection has failed.
    fn probe(&self) -> Result<()>;

    /// Whether it hears of what arrives now, as far as is known. A sender hears of it from the receiver.
    ///
    /// # Errors
    /// NCCL's thread has panicked inside.
    fn is_reporting(&self) -> Result<bool>;

    /// Takes its queue pairs out. From now on NCCL's calls post and poll nothing.
    ///
    /// # Errors
    /// NCCL's thread has panicked inside.
    fn take_qps(&self) -> Result<QpSet>;

    /// Takes in what had arrived on the queue pairs that were taken out.
    ///
    /// # Errors
    /// What has arrived is not what a Ferrite sends.
    fn handle_drained(&self, drained: &Drained) -> Result<()>;

    /// Makes queue pairs that are connected ready for the peer's messages.
    ///
    /// # Errors
    /// The device refuses.
    fn prepare(&self, qps: &mut QpSet) -> Result<()>;

    /// Goes on over `qps`, on rails that begin with `weights`. The sender is given the receiver's missing list. The receiver returns its
    /// missing list.
    ///
    /// # Errors
    /// The missing list is not possible, a message cannot be sent again, or the device refuses.
    fn resume(
        &self,
        qps: QpSet,
        weights: RailWeights,
        missing_list: Option<&MissingList>,
    ) -> Result<Option<MissingList>>;

    /// Accepts no new messages from now on, while those that have begun go on. Only a sender is asked.
    ///
    /// # Errors
    /// NCCL's thread has panicked inside.
    fn drain(&self) -> Result<()>;

    /// Accepts new messages again after [`Self::drain`]. Only a sender is asked.
    ///
    /// # Errors
    /// The connection ends.
    fn keep_queue_pairs(&self) -> Result<()>;

    /// Whether all messages that have begun are acknowledged. A receiver has begun none.
    ///
    /// # Errors
    /// NCCL's thread has panicked inside.
    fn is_drained(&self) -> Result<bool>;
}
