//! The queue pairs of one end of a connection, from creation to failure.

use super::address::LocalAddress;
use super::device::Device;
use super::link::Link;
use crate::error::{Error, Result};
use crate::host::{random, sysfs};
use crate::proto::handshake::{Endpoint, LaneEnd};
use crate::proto::requests::RequestId;
use crate::verbs::queue::{CompletionQueue, Depths, IdleQueuePair, QueuePair};
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Completion};
use std::net::Ipv6Addr;
use std::sync::Arc;

/// The queue pairs of one end, before the other end is known.
#[derive(Debug)]
pub struct IdleLanes {
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) pairs: Vec<IdleQueuePair>,
    pub(super) address: LocalAddress,
    /// What the peer is told.
    pub endpoint: Endpoint,
}

/// One connected queue pair with its accounts.
#[derive(Debug)]
pub struct Lane {
    /// The queue pair.
    pub pair: QueuePair,
    /// Receive work requests that are posted.
    pub receives: u32,
}

/// The connected queue pairs of one end.
#[derive(Debug)]
pub struct Lanes {
    /// Their common completion queue.
    pub queue: Arc<CompletionQueue>,
    /// By lane number.
    pub lanes: Vec<Lane>,
    pub(super) address: LocalAddress,
    pub(super) remote: Endpoint,
}

impl IdleLanes {
    /// `count` queue pairs on `device`, sized by `depths`; `peer` is the peer's GID, if that is known.
    ///
    /// # Errors
    /// The port is down, or the device has no more queues.
    pub fn new(device: &Device, count: u8, depths: Depths, peer: Option<[u8; 16]>) -> Result<Self> {
        let config = &device.config;
        let address = device.address_towards(peer)?;
        let entries = (depths.send + depths.recv) * u32::from(count);
        let queue = CompletionQueue::new(&device.card.context, entries)?;
        let pair = |_| IdleQueuePair::new(&device.card.domain, &queue, device.port, config.pkey_index, depths);
        let pairs = (0..count).map(pair).collect::<Result<Vec<_>>>()?;
        let lane = |pair: &IdleQueuePair| {
            let psn = u32::from_le_bytes(random::bytes()?) & 0xff_ffff;
            Ok(LaneEnd { qpn: pair.number(), psn, ece: None })
        };
        let endpoint = Endpoint {
            name: format!(
                "{} port {} of process {} on {}",
                device.name,
                device.port,
                std::process::id(),
                sysfs::host_name()
            ),
            infiniband: address.port.infiniband,
            lid: address.port.lid,
            gid: address.gid.gid,
            mtu: address.port.mtu,
            adaptive_routing: config.adaptive_routing.unwrap_or(address.port.infiniband),
            split: config.split,
            lanes: pairs.iter().map(lane).collect::<Result<_>>()?,
        };
        Ok(Self { queue, pairs, address, endpoint })
    }

    /// Keeps the first `count` queue pairs; the rest is given back.
    pub fn truncate(&mut self, count: u8) {
        self.pairs.truncate(usize::from(count));
        self.endpoint.lanes.truncate(usize::from(count));
    }
}

impl Lanes {
    /// Takes a batch of completions and hands those that succeeded to `handle`; how many there were.
    ///
    /// # Errors
    /// One has failed, which tells more than what `handle` makes of the others; or else what `handle` says.
    #[inline(always)]
    pub fn poll(
        &mut self,
        device: &Arc<Device>,
        link: &Arc<Link>,
        mut handle: impl FnMut(&mut [Lane], &Completion) -> Result<()>,
    ) -> Result<usize> {
        let mut batch = Batch::default();
        let completions = self.queue.poll(&mut batch)?;
        let (mut failed, mut outcome) = (None, Ok(()));
        for completion in completions {
            if completion.status() != Status::SUCCESS {
                failed = failed.or(Some(completion));
            } else if outcome.is_ok() {
                outcome = handle(&mut self.lanes, completion);
            }
        }
        match failed {
            Some(completion) => Err(self.explain(device, link, completion)),
            None => outcome.map(|()| completions.len()),
        }
    }

    /// The error behind a failed completion, told so that somebody can act on it.
    #[cold]
    pub fn explain(&self, device: &Device, link: &Link, completion: &Completion) -> Error {
        let work = WorkId::from_bits(completion.id());
        let lane = work.lane();
        let qpn = self.lanes.get(lane).map_or(0, |l| l.pair.number());
        let remote_qpn = self.remote.lanes.get(lane).map_or(0, |l| l.qpn);
        let (status, vendor_error) = (completion.status(), completion.vendor_error());
        let reason = link.reason();
        let peer_state = if !reason.is_empty() {
            format!("; {reason}")
        } else if status == Status::RETRY_EXCEEDED {
            "; the peer's control connection still stands, so its process lives and the path is at fault".into()
        } else {
            String::new()
        };
        let cause = match status.cause() {
            "" => String::new(),
            cause => format!("; likely: {cause}"),
        };
        Error::remote(format!(
            "{} on {}: {status}, vendor error {vendor_error}; local GID {} (index {}) LID {} queue pair {qpn}, \
             remote GID {} LID {} queue pair {remote_qpn}, peer {}{peer_state}{cause}",
            work.operation(),
            device.name,
            Ipv6Addr::from(self.address.gid.gid),
            self.address.gid.index,
            self.address.port.lid,
            Ipv6Addr::from(self.remote.gid),
            self.remote.lid,
            link.peer(),
        ))
    }
}

/// What a work request's id tells when its completion comes.
///
/// ```text
/// bit 63      56 55     40 39    32 31        0
///      kind      zero      lane     request
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkId {
    /// A stripe of a message.
    Data {
        /// The message.
        request: RequestId,
        /// The queue pair.
        lane: u8,
    },
    /// Clear-to-sends.
    Announce {
        /// The queue pair.
        lane: u8,
    },
    /// A receive work request.
    Receive {
        /// The queue pair.
        lane: u8,
    },
    /// A flush of GPU memory.
    Flush {
        /// The flush.
        request: RequestId,
    },
}

impl WorkId {
    /// The 64 bits of a work request's id.
    #[inline(always)]
    pub fn to_bits(self) -> u64 {
        let (kind, lane, request) = match self {
            Self::Data { request, lane } => (1, lane, request.to_bits()),
            Self::Announce { lane } => (2, lane, 0),
            Self::Receive { lane } => (3, lane, 0),
            Self::Flush { request } => (4, 0, request.to_bits()),
        };
        kind << 56 | u64::from(lane) << 32 | u64::from(request)
    }

    /// The meaning of a work request's id. Ids come back from the device as they were given to it.
    #[inline(always)]
    pub fn from_bits(bits: u64) -> Self {
        let (lane, request) = ((bits >> 32) as u8, RequestId::from_bits(bits as u32));
        match bits >> 56 {
            1 => Self::Data { request, lane },
            2 => Self::Announce { lane },
            3 => Self::Receive { lane },
            _ => Self::Flush { request },
        }
    }

    fn lane(self) -> usize {
        match self {
            Self::Data { lane, .. } | Self::Announce { lane, .. } | Self::Receive { lane } => usize::from(lane),
            Self::Flush { .. } => usize::MAX,
        }
    }

    fn operation(self) -> &'static str {
        match self {
            Self::Data { .. } => "sending data",
            Self::Announce { .. } => "sending a clear-to-send",
            Self::Receive { .. } => "receiving",
            Self::Flush { .. } => "flushing GPU memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_id_survives_the_device() {
        let request = RequestId::from_bits(0xabcd_ef12);
        for id in [
            WorkId::Data { request, lane: 31 },
            WorkId::Announce { lane: 2 },
            WorkId::Receive { lane: 7 },
            WorkId::Flush { request },
        ] {
            assert_eq!(WorkId::from_bits(id.to_bits()), id);
        }
    }
}
