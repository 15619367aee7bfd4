//! Connecting the queue pairs of one end to those of the other: again and again, where the way to the peer is not there
//! yet. There are no pauses: NCCL calls until it is done. One attempt takes as long as the kernel looks for a neighbour, up to a
//! second on RoCE.

use super::set::{IdleLanes, IdleRail, Lane, Lanes, WorkId};
use crate::error::{Error, Result};
use crate::host::config::Retries;
use crate::host::{gid, ib};
use crate::net::device::address::LocalAddress;
use crate::net::device::nic::Nic;
use crate::net::device::rail::Rail;
use crate::proto;
use crate::proto::endpoint::{self, Endpoint, LaneEnd, RailEnd};
use crate::proto::handshake::Terms;
use crate::verbs::path::{Ece, Path, Refused};
use crate::verbs::queue::IdleQueuePair;
use std::time::{Duration, Instant};

/// Queue pairs on their way to their peers.
#[derive(Debug)]
pub struct Joining {
    /// What the peer is told of this end.
    pub endpoint: Endpoint,
    lanes: Lanes,
    /// Those of all rails that are not connected yet, in the order of their lanes, the next one last.
    idle: Vec<IdleQueuePair>,
    traffic_class: u8,
    attempts: Attempts,
}

/// The two ends of a rail.
#[derive(Debug, Clone, Copy)]
struct Ends<'a> {
    rail: &'a Rail,
    local: &'a LocalAddress,
    far: &'a RailEnd,
    remote: &'a Endpoint,
    number: usize,
}

/// Attempts at one queue pair.
#[derive(Debug)]
struct Attempts {
    retries: Retries,
    failed: u32,
    first: Instant,
    next: Instant,
}

impl IdleLanes {
    /// Begins to connect each queue pair to its counterpart in `remote`, on `terms`; what it sends has `traffic_class`.
    ///
    /// # Errors
    /// There are fewer queue pairs than the terms have lanes.
    pub fn join(mut self, nic: &Nic, remote: Endpoint, terms: &Terms, traffic_class: u8) -> Result<Joining> {
        self.truncate(terms);
        let striping = terms.striping;
        let (mut rails, mut waiting) = (Vec::new(), Vec::new());
        for IdleRail { on, pairs } in self.rails {
            rails.push(on);
            waiting.push(pairs.into_iter());
        }
        let mut idle = Vec::with_capacity(striping.qp_count().into());
        for lane in (0..striping.qp_count()).map(proto::QpIndex) {
            let pair = waiting.get_mut(usize::from(striping.rail_of(lane))).and_then(Iterator::next);
            let (Some(pair), Some(far)) = (pair, remote.lane(lane, striping)) else { return Err(is_missing(lane)) };
            // Both ends have it, or the peer would not have said so.
            if let Some(offered) = far.ece.filter(|_| nic.config.ece) {
                pair.adopt_ece(from_wire(offered));
            }
            idle.push(pair);
        }
        idle.reverse();
        let queue = rails.first().map(|on| on.queue.clone()).ok_or_else(|| Error::internal("no rail"))?;
        let lanes = Vec::with_capacity(idle.len());
        let lanes = Lanes { queue, lanes, rails, name: nic.name.clone(), striping, remote };
        let attempts = Attempts::new(nic.config.retries);
        Ok(Joining { endpoint: self.endpoint, lanes, idle, traffic_class, attempts })
    }

    /// Tells the peer what each device offers beyond the standard.
    pub fn offer_ece(&mut self) {
        for (end, rail) in self.endpoint.rails.iter_mut().zip(&self.rails) {
            for (lane, pair) in end.lanes.iter_mut().zip(&rail.pairs) {
                lane.ece = pair.ece().map(to_wire);
            }
        }
    }
}

impl Joining {
    /// Does what can be done now; whether all are connected.
    ///
    /// # Errors
    /// A device refuses the path for good.
    pub fn advance(&mut self, nic: &Nic) -> Result<bool> {
        let striping = self.lanes.striping;
        while let Some(pair) = self.idle.pop_if(|_| self.attempts.next <= Instant::now()) {
            let lane = proto::QpIndex(u8::try_from(self.lanes.lanes.len()).unwrap_or(u8::MAX));
            let ends = Ends::of(lane, nic, &self.lanes).ok_or_else(|| is_missing(lane))?;
            let (Some(local), Some(far)) = (self.endpoint.lane_mut(lane, striping), ends.remote.lane(lane, striping))
            else {
                return Err(is_missing(lane));
            };
            let path = ends.path(*local, far, self.traffic_class)?;
            let is_first = lane.0 < striping.rails();
            if is_first && self.attempts.failed == 0 {
                ends.tell(&path);
            }
            match pair.try_connect(&path, WorkId::Receive { lane: lane.0 }.to_bits()) {
                Ok(pair) => {
                    self.attempts.succeed(&ends);
                    let agreed = pair.ece().filter(|_| far.ece.is_some() && nic.config.ece);
                    if let Some(ece) = agreed.filter(|_| is_first) {
                        let (name, peer) = (&ends.rail.name, ends.peer());
                        log::debug!("{name} and {peer} use ECE options {:#x} of {:#x}", ece.options, ece.vendor_id);
                    }
                    local.ece = agreed.map(to_wire);
                    self.lanes.lanes.push(Lane { pair, receives: 0 });
                }
                Err(refused) => {
                    let Refused { pair, errno, error } = *refused;
                    self.attempts.fail(&ends, errno, error)?;
                    self.idle.push(pair);
                }
            }
        }
        Ok(self.idle.is_empty())
    }

    /// The connected queue pairs, and what the peer is to be told of them.
    pub fn finish(self) -> (Lanes, Endpoint) {
        (self.lanes, self.endpoint)
    }
}

fn is_missing(lane: proto::QpIndex) -> Error {
    Error::internal(format!("{lane:?} is missing"))
}

impl<'a> Ends<'a> {
    /// Those of the rail that `lane` is on.
    fn of(lane: proto::QpIndex, nic: &'a Nic, lanes: &'a Lanes) -> Option<Self> {
        let number = usize::from(lanes.striping.rail_of(lane));
        let (rail, local) = (nic.rails.get(number)?, &lanes.rails.get(number)?.address);
        Some(Self { rail, local, far: lanes.remote.rails.get(number)?, remote: &lanes.remote, number })
    }

    /// For messages: the far end.
    fn peer(&self) -> String {
        self.remote.name_of(self.number)
    }

    /// The way of a queue pair from its `local` end to its `far` one.
    fn path(&self, local: LaneEnd, far: LaneEnd, traffic_class: u8) -> Result<Path> {
        let way = path_to(self.rail, self.local, &self.far.gid, self.far.lid)?;
        let way = Path { mtu: way.mtu.min(self.far.mtu), traffic_class, ..way };
        Ok(Path { psn: local.psn, dest_qpn: far.qpn, dest_psn: far.psn, ..way })
    }

    /// Says by which addresses they find each other.
    fn tell(&self, path: &Path) {
        let (Self { local, rail, .. }, peer, class) = (self, self.peer(), path.traffic_class);
        let mtu = 128_u32 << path.mtu;
        rail.tell_of_networks(local, &self.far.gid, &peer);
        match path.global {
            false => {
                log::debug!("{}: LID {} to LID {}, MTU {mtu}, of {peer}", rail.name, local.port.lid, path.dest_lid)
            }
            true => log::debug!(
                "{}: GID {} {} to GID {}, LID {}, traffic class {class}, MTU {mtu}, of {peer}",
                rail.name,
                path.gid_index,
                local.gid.address(),
                gid::address(&path.dest_gid),
                path.dest_lid
            ),
        }
    }
}

impl Attempts {
    fn new(retries: Retries) -> Self {
        let now = Instant::now();
        Self { retries, failed: 0, first: now, next: now }
    }

    fn succeed(&mut self, ends: &Ends<'_>) {
        if self.failed > 0 {
            log::info!("{}: connected at attempt {}", ends.rail.name, self.failed + 1);
        }
        *self = Self::new(self.retries);
    }

    /// # Errors
    /// It has failed too often, or for a reason that does not pass.
    fn fail(&mut self, ends: &Ends<'_>, errno: i32, error: Error) -> Result<()> {
        let Retries { all, count, pause_ms } = self.retries;
        self.failed += 1;
        if self.failed > count || (errno != libc::ETIMEDOUT && !all) {
            return Err(self.give_up(ends, error));
        }
        if self.failed == 1 {
            self.first = Instant::now();
            log::info!(
                "{}: {error}; up to {count} more attempts, {pause_ms} ms apart (NCCL_IB_MQP_RETRY_CNT, \
                 NCCL_IB_MQP_RETRY_SLEEP_MSEC)",
                ends.rail.name
            );
        }
        self.next = Instant::now() + Duration::from_millis(pause_ms);
        Ok(())
    }

    fn give_up(&self, ends: &Ends<'_>, mut error: Error) -> Error {
        let Ends { rail, local, far, .. } = ends;
        let seconds = self.first.elapsed().as_secs_f32();
        if self.failed > 1 {
            error.text += &format!("; {} attempts in {seconds:.1} s (NCCL_IB_MQP_RETRY_CNT)", self.failed);
        }
        error.text += &format!(
            "; {} with GID {} (index {}), peer {} with GID {}",
            rail.name,
            local.gid.address(),
            local.gid.index,
            ends.peer(),
            gid::address(&far.gid)
        );
        if !local.port.is_infiniband() && !gid::are_neighbours(&local.gid.gid, &far.gid, rail.config.subnet_bits) {
            error.text += "; likely: the two are in different networks, and no router joins them (where rails are not \
                           connected, NCCL_CROSS_NIC=0 keeps to one)";
        }
        error
    }
}

/// The way from `rail`, which is at `local`, to a port, as far as it is the same for all queue pairs.
///
/// # Errors
/// The local GID has gone.
pub fn path_to(rail: &Rail, local: &LocalAddress, gid: &[u8; 16], lid: u16) -> Result<Path> {
    let config = &rail.config;
    let reach = match local.port.is_infiniband() {
        true => ib::reach(&local.gid.gid, gid, lid, local.port.grh_required),
        false => ib::Reach { lid, global: true },
    };
    Ok(Path {
        dest_qpn: 0,
        dest_psn: 0,
        psn: 0,
        dest_gid: *gid,
        dest_lid: reach.lid,
        global: reach.global,
        gid_index: if reach.global { rail.index_of(local)? } else { 0 },
        mtu: local.port.mtu,
        service_level: config.service_level,
        traffic_class: config.traffic_class,
        timeout: config.timeout,
        retry_count: config.retry_count,
    })
}

fn to_wire(ece: Ece) -> endpoint::Ece {
    let Ece { vendor_id, options, comp_mask } = ece;
    endpoint::Ece { vendor_id, options, comp_mask }
}

fn from_wire(ece: endpoint::Ece) -> Ece {
    let endpoint::Ece { vendor_id, options, comp_mask } = ece;
    Ece { vendor_id, options, comp_mask }
}
