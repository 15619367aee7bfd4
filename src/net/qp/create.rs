//! Creating a queue pair on a rail.

use crate::error::{Error, Result};
use crate::net::device::open_device::OpenDevice;
use crate::net::device::rail::{Rail, partition_index};
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::queue_pair::{InitQueuePair, QpCaps, RemoteAccess, ResetQueuePair};
use crate::verbs::thread_domain::ThreadDomain;
use std::sync::Arc;

/// A queue pair on `rail` in state INIT, whose device is open as `device`. It completes into
/// `queue`, and is in the thread domain `thread`, if any.
///
/// # Errors
/// The device has no more queue pairs, or the port has no such partition key.
pub fn create_qp(
    rail: &Rail,
    device: &OpenDevice,
    thread: Option<&Arc<ThreadDomain>>,
    queue: &Arc<CompletionQueue>,
    caps: QpCaps,
    access: RemoteAccess,
) -> Result<InitQueuePair> {
    let pkey_index = partition_index(&device.context, rail.port, &rail.config)?;
    let qp = ResetQueuePair::new(&device.domain, thread, queue, caps)?;
    qp.initialize(rail.port, pkey_index, access).map_err(|error| {
        let keys = device.context.port(rail.port).map_or(0, |port| port.pkey_count);
        match error.errno {
            Some(libc::EINVAL) if keys <= pkey_index => Error::from(error).hint(format_args!(
                "NCCL_IB_PKEY={pkey_index}: the port has {keys} partition key(s), from 0"
            )),
            _ => error.into(),
        }
    })
}
