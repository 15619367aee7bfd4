//! Flushing received data to GPU memory: a one-byte READ over a queue pair that is connected to itself.
//!
//! A read may not pass the writes before it on the bus, so when it is done, they are. That holds for writes of the same
//! port: each rail that has carried data needs a read of its own. The queue pairs exist only once a flush has been asked
//! for: recent GPUs never need one.

use crate::error::{Error, Result};
use crate::net::device::nic::Nic;
use crate::net::device::rail::Rail;
use crate::net::mr::handle::MrHandle;
use crate::net::qp::connect::path_to;
use crate::net::qp::set::WrId;
use crate::proto::requests::{RequestId, Requests};
use crate::proto::{MAX_RAILS, Violation};
use crate::verbs::queue::{CompletionQueue, InitQueuePair, Path, QpCaps, QueuePair, RemoteAccess};
use crate::verbs::shared::SharedRing;
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Sge, Target};
use std::sync::Arc;

/// As many flushes as requests, so that the queue never fills.
const DEPTHS: QpCaps = QpCaps { send: crate::proto::MAX_REQUESTS as u32, recv: 1, inline_bytes: 0 };

/// The flushes of one receiver.
#[derive(Debug, Default)]
pub struct Flushes {
    rails: [Option<FlushRail>; MAX_RAILS],
    /// Reads that are missing, of each flush.
    requests: Requests<u8>,
}

/// A queue pair connected to itself, and a byte to read into.
#[derive(Debug)]
struct FlushRail {
    name: String,
    pair: QueuePair,
    queue: Arc<CompletionQueue>,
    landing: SharedRing<8, 1>,
}

impl Flushes {
    /// Begins to read one byte at `addr` over each rail of which `rails` has the bit set. `None`: as many flushes as there can be
    /// are outstanding.
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
                rail.pair.post_read(WrId::Flush { request }.to_bits(), local, target)?;
            }
        }
        Ok(Some(request))
    }

    /// Whether the flush is complete. Its id is stale afterwards.
    ///
    /// # Errors
    /// It failed.
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
        let queue = CompletionQueue::new(&rail.card.context, DEPTHS.send + DEPTHS.recv)?;
        let idle = InitQueuePair::new(
            &rail.card.domain,
            &queue,
            rail.port,
            rail.config.pkey_index,
            DEPTHS,
            RemoteAccess::Read,
        )?;
        let path = path_to(rail, &address, &address.gid.gid, address.port.lid)?;
        let path = Path { dest_qpn: idle.number(), ..path };
        let landing = SharedRing::new([&rail.card.domain], 1)?;
        let pair = idle.connect(&path, WrId::Receive { lane: 0 }.to_bits())?;
        Ok(Self { name: rail.name.clone(), pair, queue, landing })
    }
}
