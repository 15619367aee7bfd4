//! The queue pairs of one end of a connection, over all its rails, from creation to failure.

use crate::error::{Error, Result};
use crate::host::{random, sysfs};
use crate::net::control::peer_state::PeerState;
use crate::net::device::address::LocalAddress;
use crate::net::device::nic::Nic;
use crate::net::device::rail::Rail;
use crate::proto::endpoint::{Endpoint, LaneEnd, RailEnd};
use crate::proto::handshake::Terms;
use crate::proto::requests::RequestId;
use crate::proto::stripe::Striping;
use crate::proto::{self, MAX_LANES, MAX_RAILS};
use crate::verbs::queue::{CompletionQueue, Depths, IdleQueuePair, QueuePair, RemoteAccess};
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Completion};
use std::net::Ipv6Addr;
use std::sync::Arc;

/// The queue pairs of one end, before the other end is known.
#[derive(Debug)]
pub struct IdleLanes {
    pub(in crate::net) rails: Vec<IdleRail>,
    /// What the peer is told.
    pub endpoint: Endpoint,
}

/// Those on one rail.
#[derive(Debug)]
pub(in crate::net) struct IdleRail {
    pub(in crate::net) on: OnRail,
    pub(in crate::net) pairs: Vec<IdleQueuePair>,
}

/// What the lanes of one rail share.
#[derive(Debug)]
pub(in crate::net) struct OnRail {
    name: String,
    pub(in crate::net) address: LocalAddress,
    pub(in crate::net) queue: Arc<CompletionQueue>,
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
    /// The first rail's completion queue, which is the only one of most connections.
    pub(in crate::net) queue: Arc<CompletionQueue>,
    /// By lane number.
    pub lanes: Vec<Lane>,
    pub(in crate::net) rails: Vec<OnRail>,
    /// The device, for messages.
    pub(in crate::net) name: String,
    pub(in crate::net) striping: Striping,
    pub(in crate::net) remote: Endpoint,
}

impl IdleLanes {
    /// At most `per_rail` queue pairs, sized by `depths`, on each rail of `nic`; or, if the peer's end is known, on as many
    /// rails as both have, each of which is addressed as suits its other end.
    ///
    /// # Errors
    /// A port is down, or a device has no more queues.
    pub fn new(nic: &Nic, per_rail: usize, depths: Depths, peer: Option<&Endpoint>) -> Result<Self> {
        let config = &nic.config;
        let used: Vec<_> = nic.rails.iter().take(peer.map_or(MAX_RAILS, |peer| peer.rails.len())).collect();
        let count = per_rail.min(MAX_LANES / used.len().max(1));
        let far = |rail: usize| peer.and_then(|peer| peer.rails.get(rail)).map(|end| end.gid);
        let idle = |(number, rail): (usize, &&Arc<Rail>)| IdleRail::new(rail, count, depths, far(number));
        let idle = used.iter().enumerate().map(idle).collect::<Result<Vec<_>>>()?;
        let infiniband = nic.first().infiniband;
        let ends = used.iter().zip(&idle).map(|(rail, idle)| idle.end(rail)).collect::<Result<_>>()?;
        let port = match nic.rails.as_slice() {
            [one] => format!(" port {}", one.port),
            _ => String::new(),
        };
        let endpoint = Endpoint {
            name: format!("{}{port} of process {} on {}", nic.name, std::process::id(), sysfs::host_name()),
            adaptive_routing: config.adaptive_routing.unwrap_or(infiniband),
            split: config.split,
            rails: ends,
        };
        Ok(Self { rails: idle, endpoint })
    }

    /// Keeps what `terms` have use for; the rest is given back.
    pub fn truncate(&mut self, terms: &Terms) {
        self.endpoint.truncate(terms.striping.rails().into(), terms.lanes_per_rail());
        self.rails.truncate(terms.striping.rails().into());
        for rail in &mut self.rails {
            rail.pairs.truncate(terms.lanes_per_rail());
        }
    }
}

impl IdleRail {
    fn new(rail: &Rail, count: usize, depths: Depths, peer: Option<[u8; 16]>) -> Result<Self> {
        let address = rail.address_towards(peer)?;
        let entries = (depths.send + depths.recv) * count as u32;
        let queue = CompletionQueue::new(&rail.card.context, entries)?;
        let pair = |_| {
            IdleQueuePair::new(
                &rail.card.domain,
                &queue,
                rail.port,
                rail.config.pkey_index,
                depths,
                RemoteAccess::Write,
            )
        };
        let pairs = (0..count).map(pair).collect::<Result<Vec<_>>>()?;
        Ok(Self { on: OnRail { name: rail.name.clone(), address, queue }, pairs })
    }

    fn end(&self, rail: &Rail) -> Result<RailEnd> {
        let LocalAddress { port, gid } = self.on.address;
        let lane = |pair: &IdleQueuePair| {
            let psn = u32::from_le_bytes(random::bytes()?) & 0xff_ffff;
            Ok(LaneEnd { qpn: pair.number(), psn, ece: None })
        };
        Ok(RailEnd {
            name: format!("{} port {}", rail.name, rail.port),
            infiniband: port.is_infiniband(),
            lid: port.lid,
            gid: gid.gid,
            mtu: port.mtu,
            speed_mbps: rail.speed_mbps,
            lanes: self.pairs.iter().map(lane).collect::<Result<_>>()?,
        })
    }
}

impl Lanes {
    /// Whether there is more than one rail.
    #[inline(always)]
    pub fn are_on_several_rails(&self) -> bool {
        self.rails.len() > 1
    }

    /// Ids of the completion queues, by rail.
    pub fn queues(&self) -> impl Iterator<Item = u64> {
        self.rails.iter().map(|on| on.queue.id())
    }

    /// Takes a batch of completions of the first rail, which most connections have only, and hands those that succeeded to
    /// `handle`; how many there were.
    ///
    /// # Errors
    /// One has failed, which tells more than what `handle` makes of the others; or else what `handle` says.
    #[inline(always)]
    pub fn poll(
        &mut self,
        link: &Arc<PeerState>,
        handle: impl FnMut(&mut [Lane], &Completion) -> Result<()>,
    ) -> Result<usize> {
        self.poll_rail(0, link, handle)
    }

    /// The same over all rails.
    ///
    /// # Errors
    /// As [`Self::poll`], of the first rail that has one.
    #[inline(never)]
    pub fn poll_rails(
        &mut self,
        link: &Arc<PeerState>,
        mut handle: impl FnMut(&mut [Lane], &Completion) -> Result<()>,
    ) -> Result<usize> {
        (0..self.rails.len()).try_fold(0, |before, rail| Ok(before + self.poll_rail(rail, link, &mut handle)?))
    }

    #[inline(always)]
    fn poll_rail(
        &mut self,
        rail: usize,
        link: &Arc<PeerState>,
        mut handle: impl FnMut(&mut [Lane], &Completion) -> Result<()>,
    ) -> Result<usize> {
        let queue = if rail == 0 { &self.queue } else { &self.rails[rail].queue };
        let mut batch = Batch::default();
        let completions = queue.poll(&mut batch)?;
        let (mut failed, mut outcome) = (None, Ok(()));
        for completion in completions {
            if completion.status() != Status::SUCCESS {
                failed = failed.or(Some(completion));
            } else if outcome.is_ok() {
                outcome = handle(&mut self.lanes, completion);
            }
        }
        match failed {
            Some(completion) => Err(self.explain(link, completion)),
            None => outcome.map(|()| completions.len()),
        }
    }

    /// The error behind a failed completion, told so that somebody can act on it.
    #[cold]
    #[inline(never)]
    fn explain(&self, link: &PeerState, completion: &Completion) -> Error {
        let work = WorkId::from_bits(completion.id());
        let (status, vendor_error) = (completion.status(), completion.vendor_error());
        let circumstances = circumstances(status, &link.reason(), link.is_lost());
        let operation = work.operation();
        let (on, between) = self.place(work.lane());
        let peer = link.peer();
        Error::remote(format!(
            "{operation} on {on}: {status}, vendor error {vendor_error}; {between}, peer {peer}{circumstances}"
        ))
    }

    /// For messages: the port that `lane` is on, and the lane's two ends.
    fn place(&self, lane: u8) -> (String, String) {
        let number = usize::from(lane) % self.rails.len().max(1);
        let (Some(OnRail { name, address, .. }), Some(far)) = (self.rails.get(number), self.remote.rails.get(number))
        else {
            return (self.name.clone(), String::new());
        };
        let on = match self.rails.len() {
            1 => name.clone(),
            _ => format!("{name} (rail {number} of {})", self.name),
        };
        let qpn = self.lanes.get(usize::from(lane)).map_or(0, |l| l.pair.number());
        let remote_qpn = self.remote.lane(proto::Lane(lane), self.striping).map_or(0, |l| l.qpn);
        let between = format!(
            "local GID {} (index {}) LID {} queue pair {qpn}, remote GID {} LID {} queue pair {remote_qpn} of {}",
            Ipv6Addr::from(address.gid.gid),
            address.gid.index,
            address.port.lid,
            Ipv6Addr::from(far.gid),
            far.lid,
            far.name,
        );
        (on, between)
    }
}

/// What is known of the peer when a work request has failed, and the likely cause. `reason` is what the link tells, which is
/// nothing while its line stands; `is_lost`: that is all it knows.
fn circumstances(status: Status, reason: &str, is_lost: bool) -> String {
    let has_no_answer = status == Status::RETRY_EXCEEDED;
    let peer = match reason {
        "" if has_no_answer => {
            "; the peer's control connection still stands, so its process lives and the path is at fault".into()
        }
        "" => String::new(),
        reason => format!("; {reason}"),
    };
    let death = if has_no_answer && is_lost { "the peer has died, or " } else { "" };
    match status.cause() {
        // Then the path is not to be blamed.
        _ if has_no_answer && !reason.is_empty() && !is_lost => peer,
        "" => peer,
        cause => format!("{peer}; likely: {death}{cause}"),
    }
}

/// What a work request's id tells when its completion comes.
///
/// ```text
/// bit 63      56 55     48 47     40 39    32 31        0
///      kind      zero      further   lane     request
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
    /// A stripe of a message in more than one work request.
    LongData {
        /// The message.
        request: RequestId,
        /// The queue pair.
        lane: u8,
        /// Work requests beside the first.
        further: u8,
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
    /// A write of no bytes that asks whether the peer is there.
    Probe {
        /// The queue pair.
        lane: u8,
    },
}

impl WorkId {
    /// The 64 bits of a work request's id.
    #[inline(always)]
    pub fn to_bits(self) -> u64 {
        let (kind, further, lane, request) = match self {
            Self::Data { request, lane } => (1, 0, lane, request.to_bits()),
            Self::Announce { lane } => (2, 0, lane, 0),
            Self::Receive { lane } => (3, 0, lane, 0),
            Self::Flush { request } => (4, 0, 0, request.to_bits()),
            Self::LongData { request, lane, further } => (5, further, lane, request.to_bits()),
            Self::Probe { lane } => (6, 0, lane, 0),
        };
        kind << 56 | u64::from(further) << 40 | u64::from(lane) << 32 | u64::from(request)
    }

    /// The meaning of a work request's id. Ids come back from the device as they were given to it.
    #[inline(always)]
    pub fn from_bits(bits: u64) -> Self {
        let (lane, request) = ((bits >> 32) as u8, RequestId::from_bits(bits as u32));
        match bits >> 56 {
            1 => Self::Data { request, lane },
            2 => Self::Announce { lane },
            3 => Self::Receive { lane },
            4 => Self::Flush { request },
            5 => Self::LongData { request, lane, further: (bits >> 40) as u8 },
            _ => Self::Probe { lane },
        }
    }

    fn lane(self) -> u8 {
        match self {
            Self::Data { lane, .. }
            | Self::LongData { lane, .. }
            | Self::Announce { lane }
            | Self::Receive { lane }
            | Self::Probe { lane } => lane,
            Self::Flush { .. } => 0,
        }
    }

    fn operation(self) -> &'static str {
        match self {
            Self::Data { .. } | Self::LongData { .. } => "sending data",
            Self::Announce { .. } => "sending a clear-to-send",
            Self::Receive { .. } => "receiving",
            Self::Flush { .. } => "flushing GPU memory",
            Self::Probe { .. } => "asking whether the peer is there",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No line says both that the peer lives and that it has died.
    #[test]
    fn the_likely_cause_agrees_with_what_is_known_of_the_peer() {
        let lives = circumstances(Status::RETRY_EXCEEDED, "", false);
        assert!(lives.contains("its process lives") && lives.contains("likely: a link or switch"), "{lives}");
        assert!(!lives.contains("died"), "{lives}");
        let unknown = circumstances(Status::RETRY_EXCEEDED, "the control connection was lost before", true);
        assert!(unknown.contains("lost before; likely: the peer has died, or a link"), "{unknown}");
        let dead = circumstances(Status::RETRY_EXCEEDED, "the peer's process has died", false);
        assert_eq!(dead, "; the peer's process has died");
        assert!(circumstances(Status(10), "", false).starts_with("; likely: "));
    }

    #[test]
    fn a_work_id_survives_the_device() {
        let request = RequestId::from_bits(0xabcd_ef12);
        for id in [
            WorkId::Data { request, lane: 31 },
            WorkId::LongData { request, lane: 31, further: 2 },
            WorkId::Announce { lane: 2 },
            WorkId::Receive { lane: 7 },
            WorkId::Flush { request },
            WorkId::Probe { lane: 3 },
        ] {
            assert_eq!(WorkId::from_bits(id.to_bits()), id);
        }
    }
}
