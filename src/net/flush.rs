//! Flushing received data to GPU memory: a one-byte READ over a queue pair that is connected to itself.
//!
//! A read may not pass the writes before it on the bus, so when it is done, they are. The queue pair exists only once a
//! flush has been asked for: recent GPUs never need one.

use super::device::Device;
use super::joining::path_to;
use super::lanes::WorkId;
use crate::error::{Error, Result};
use crate::proto::Violation;
use crate::proto::requests::{RequestId, Requests};
use crate::verbs::queue::{CompletionQueue, Depths, IdleQueuePair, Path, QueuePair};
use crate::verbs::shared::SharedRing;
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Span, Target};
use std::sync::Arc;

/// As many flushes as requests, so that the queue never fills.
const DEPTHS: Depths = Depths { send: crate::proto::MAX_REQUESTS as u32, recv: 1, inline_bytes: 0 };

/// A queue pair connected to itself, and a byte to read into.
#[derive(Debug)]
pub struct FlushLane {
    pair: QueuePair,
    queue: Arc<CompletionQueue>,
    landing: SharedRing<8, 1>,
    /// Whether each flush is complete.
    requests: Requests<bool>,
}

impl FlushLane {
    /// A flush lane on `device`.
    ///
    /// # Errors
    /// The port is down, or the device has no more queues or memory regions.
    pub fn new(device: &Device) -> Result<Self> {
        let config = &device.config;
        let address = device.local_address()?;
        let queue = CompletionQueue::new(&device.card.context, DEPTHS.send + DEPTHS.recv)?;
        let idle = IdleQueuePair::new(&device.card.domain, &queue, device.port, config.pkey_index, DEPTHS)?;
        let path = path_to(device, &address, &address.gid.gid, address.port.lid)?;
        let path = Path { dest_qpn: idle.number(), ..path };
        let landing = SharedRing::new(&device.card.domain)?;
        let pair = idle.connect(&path, WorkId::Receive { lane: 0 }.to_bits())?;
        Ok(Self { pair, queue, landing, requests: Requests::default() })
    }

    /// Begins to read one byte at `addr`. `None`: too much is outstanding, try again.
    ///
    /// # Errors
    /// The read cannot be posted.
    pub fn post(&mut self, addr: u64, rkey: u32) -> Result<Option<RequestId>> {
        let Some((request, done)) = self.requests.allocate() else { return Ok(None) };
        *done = false;
        let local = Span { addr: self.landing.addr(), length: 1, lkey: self.landing.lkey() };
        self.pair.post_read(WorkId::Flush { request }.to_bits(), local, Target { addr, rkey })?;
        Ok(Some(request))
    }

    /// Whether the flush is complete. Its id is stale afterwards.
    ///
    /// # Errors
    /// It failed.
    pub fn test(&mut self, id: RequestId) -> Result<bool> {
        let requests = &mut self.requests;
        for completion in self.queue.poll(&mut Batch::default())? {
            let status = completion.status();
            if status != Status::SUCCESS {
                return Err(Error::remote(format!("flushing GPU memory: {status}; likely: {}", status.cause())));
            }
            if let WorkId::Flush { request } = WorkId::from_bits(completion.id())
                && let Some(done) = requests.get_mut(request)
            {
                *done = true;
            }
        }
        Ok(self.requests.release_if(id, |done| *done).map_err(Violation::into_misuse)?.is_some())
    }
}
