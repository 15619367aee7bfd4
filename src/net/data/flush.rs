//! Flushes of received data to GPU memory: an RDMA READ of one byte over a queue pair that is connected to itself.
//!
//! On the PCI bus a read does not pass earlier writes of the same device. So once the read is complete, the writes have reached
//! the memory. Each rail that has carried data needs a read of its own. The queue pairs are created at the first flush, since
//! NCCL never asks for one with recent GPUs.

use crate::error::{Error, Result};
use crate::net::device::nic::Nic;
use crate::net::device::rail::Rail;
use crate::net::mr::handle::MrHandle;
use crate::net::qp::connect::path_to;
use crate::net::qp::set::create_qp;
use crate::net::qp::wr_id::WrId;
use crate::proto::requests::{RequestId, Requests};
use crate::proto::{MAX_RAILS, MAX_REQUESTS, Violation};
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::path::Path;
use crate::verbs::queue_pair::{QpCaps, QueuePair, RemoteAccess};
use crate::verbs::shared::SharedRing;
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Sge, Target};
use std::sync::Arc;

/// Room for a read of every outstanding flush, so that the send queue never overflows.
const FLUSH_QP_CAPS: QpCaps = QpCaps { max_send_wr: MAX_REQUESTS as u32, max_recv_wr: 1, max_inline_data: 0 };

/// The flushes of one receiver.
#[derive(Debug, Default)]
pub struct Flushes {
    rails: [Option<FlushRail>; MAX_RAILS],
    /// For each flush the number of reads that are not complete.
    requests: Requests<u8>,
}

/// A queue pair that is connected to itself, and memory to read into.
#[derive(Debug)]
struct FlushRail {
    name: String,
    qp: QueuePair,
    queue: Arc<CompletionQueue>,
    landing: SharedRing<8, 1>,
}

impl Flushes {
    /// Begins to read one byte at `addr` over each rail whose bit is set in `rails`. `None`: [`MAX_REQUESTS`] flushes are
    /// outstanding already.
    ///
    /// # Errors
    /// A port is down, its device has no more queues or memory regions, or the read cannot be posted.
    pub fn post(&mut self, nic: &Nic, rails: u32, addr: u64, memory: &MrHandle) -> Result<Option<RequestId>> {
        let used = || nic.rails.iter().enumerate().filter(|(number, _)| rails & 1 << number != 0);
        for (number, rail) in used() {
            if self.rails[number].is_none() {
                self.rails[number] = Some(FlushRail::new(rail)?);
            }
        }
        let Some((request, missing)) = self.requests.allocate() else { return Ok(None) };
        *missing = used().count() as u8;
        for (number, _) in used() {
            if let Some(rail) = &mut self.rails[number] {
                let local = Sge { addr: rail.landing.addr(), length: 1, lkey: rail.landing.lkey(0) };
                let target = Target { addr, rkey: memory.rkeys[number] };
                rail.qp.post_read(WrId::Flush { request }.to_bits(), local, target)?;
            }
        }
        Ok(Some(request))
    }

    /// Whether the flush is complete. If it is, its id is not valid any more.
    ///
    /// # Errors
    /// The flush has failed.
    pub fn test(&mut self, id: RequestId) -> Result<bool> {
        let Self { rails, requests } = self;
        for FlushRail { name, queue, .. } in rails.iter().flatten() {
            for completion in queue.poll(&mut Batch::default())? {
                let status = completion.status();
                if status != Status::SUCCESS {
                    let text = format!("flushing GPU memory on {name}: {status}; likely: {}", status.cause());
                    return Err(Error::remote(text));
                }
                if let WrId::Flush { request } = WrId::from_bits(completion.id())
                    && let Some(missing) = requests.get_mut(request)
                {
                    *missing = missing.saturating_sub(1);
                }
            }
        }
        Ok(self.requests.release_if(id, |missing| *missing == 0).map_err(Violation::into_misuse)?.is_some())
    }
}

impl FlushRail {
    fn new(rail: &Rail) -> Result<Self> {
        let address = rail.local_address()?;
        let queue = CompletionQueue::new(&rail.card.context, FLUSH_QP_CAPS.max_send_wr + FLUSH_QP_CAPS.max_recv_wr)?;
        let init = create_qp(rail, &queue, FLUSH_QP_CAPS, RemoteAccess::Read)?;
        let path = path_to(rail, &address, &address.gid.gid, address.port.lid)?;
        let path = Path { dest_qpn: init.number(), ..path };
        let landing = SharedRing::new([&rail.card.domain], 1)?;
        let qp = init.connect(&path, WrId::Receive { qp: 0 }.to_bits())?;
        Ok(Self { name: rail.name.clone(), qp, queue, landing })
    }
}
