//! Connecting the queue pairs of one end to those of the other: again and again, where the way to the peer is not there
//! yet. Never waits: NCCL calls until it is done.

use super::address::LocalAddress;
use super::device::Device;
use super::lanes::{IdleLanes, Lane, Lanes, WorkId};
use crate::error::{Error, Result};
use crate::host::config::Retries;
use crate::host::{gid, ib};
use crate::proto::handshake::{self, Endpoint, LaneEnd, Terms};
use crate::verbs::path::{Ece, Path, Refused};
use crate::verbs::queue::IdleQueuePair;
use std::time::{Duration, Instant};

/// Queue pairs on their way to their peers.
#[derive(Debug)]
pub struct Joining {
    /// What the peer is told of this end.
    pub endpoint: Endpoint,
    lanes: Lanes,
    /// Those not connected yet, the next one last.
    idle: Vec<IdleQueuePair>,
    mtu: u8,
    traffic_class: u8,
    attempts: Attempts,
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
    pub fn join(mut self, device: &Device, remote: Endpoint, terms: &Terms, traffic_class: u8) -> Joining {
        self.truncate(terms.striping.lanes);
        device.tell_of_networks(&self.address, &remote.gid, &remote.name);
        let Self { queue, pairs, address, endpoint } = self;
        let mut idle = Vec::with_capacity(pairs.len());
        for (pair, far) in pairs.into_iter().zip(&remote.lanes) {
            // Both ends have it, or the peer would not have said so.
            if let Some(offered) = far.ece.filter(|_| device.config.ece) {
                pair.adopt_ece(from_wire(offered));
            }
            idle.push(pair);
        }
        idle.reverse();
        let lanes = Lanes { queue, lanes: Vec::with_capacity(idle.len()), address, remote };
        let attempts = Attempts::new(device.config.retries);
        Joining { endpoint, lanes, idle, mtu: terms.mtu, traffic_class, attempts }
    }

    /// Tells the peer what each device offers beyond the standard.
    pub fn offer_ece(&mut self) {
        for (lane, pair) in self.endpoint.lanes.iter_mut().zip(&self.pairs) {
            lane.ece = pair.ece().map(to_wire);
        }
    }
}

impl Joining {
    /// Does what can be done now; whether all are connected.
    ///
    /// # Errors
    /// A device refuses the path for good.
    pub fn advance(&mut self, device: &Device) -> Result<bool> {
        while let Some(pair) = self.idle.pop_if(|_| self.attempts.next <= Instant::now()) {
            let number = self.lanes.lanes.len();
            let (Some(local), Some(far)) = (self.endpoint.lanes.get(number), self.lanes.remote.lanes.get(number))
            else {
                return Err(Error::internal("more queue pairs than the two ends have told of"));
            };
            let path = path(device, &self.lanes, (*local, *far), self.mtu, self.traffic_class)?;
            if number == 0 && self.attempts.failed == 0 {
                tell(device, &self.lanes, &path);
            }
            let id = WorkId::Receive { lane: u8::try_from(number).unwrap_or(u8::MAX) };
            match pair.try_connect(&path, id.to_bits()) {
                Ok(pair) => {
                    self.attempts.succeed(device);
                    let agreed = pair.ece().filter(|_| far.ece.is_some() && device.config.ece);
                    if let Some(ece) = agreed.filter(|_| number == 0) {
                        let (name, peer) = (&device.name, &self.lanes.remote.name);
                        log::debug!("{name} and {peer} use ECE options {:#x} of {:#x}", ece.options, ece.vendor_id);
                    }
                    self.endpoint.lanes[number].ece = agreed.map(to_wire);
                    self.lanes.lanes.push(Lane { pair, receives: 0 });
                }
                Err(refused) => {
                    let Refused { pair, errno, error } = *refused;
                    self.attempts.fail(device, &self.lanes, errno, error)?;
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

impl Attempts {
    fn new(retries: Retries) -> Self {
        let now = Instant::now();
        Self { retries, failed: 0, first: now, next: now }
    }

    fn succeed(&mut self, device: &Device) {
        if self.failed > 0 {
            log::info!("{}: connected at attempt {}", device.name, self.failed + 1);
        }
        *self = Self::new(self.retries);
    }

    /// # Errors
    /// It has failed too often, or for a reason that does not pass.
    fn fail(&mut self, device: &Device, lanes: &Lanes, errno: i32, error: Error) -> Result<()> {
        let Retries { all, count, pause_ms } = self.retries;
        self.failed += 1;
        if self.failed > count || (errno != libc::ETIMEDOUT && !all) {
            return Err(self.give_up(device, lanes, error));
        }
        if self.failed == 1 {
            self.first = Instant::now();
            log::info!(
                "{}: {error}; up to {count} more attempts, {pause_ms} ms apart (NCCL_IB_MQP_RETRY_CNT, \
                 NCCL_IB_MQP_RETRY_SLEEP_MSEC)",
                device.name
            );
        }
        self.next = Instant::now() + Duration::from_millis(pause_ms);
        Ok(())
    }

    fn give_up(&self, device: &Device, lanes: &Lanes, mut error: Error) -> Error {
        let (local, remote) = (&lanes.address, &lanes.remote);
        let seconds = self.first.elapsed().as_secs_f32();
        if self.failed > 1 {
            error.text += &format!("; {} attempts in {seconds:.1} s (NCCL_IB_MQP_RETRY_CNT)", self.failed);
        }
        error.text += &format!(
            "; {} with GID {} (index {}), peer {} with GID {}",
            device.name,
            local.gid.address(),
            local.gid.index,
            remote.name,
            gid::address(&remote.gid)
        );
        let bits = device.config.subnet_bits;
        if !local.port.infiniband && !gid::are_neighbours(&local.gid.gid, &remote.gid, bits) {
            error.text += "; likely: the two are in different networks, and no router joins them (where rails are not \
                           connected, NCCL_CROSS_NIC=0 keeps to one)";
        }
        error
    }
}

/// Says by which addresses the two ends find each other.
fn tell(device: &Device, lanes: &Lanes, path: &Path) {
    let Lanes { address, remote, .. } = lanes;
    let (name, peer) = (&device.name, &remote.name);
    let class = path.traffic_class;
    match path.global {
        false => log::debug!("{name}: LID {} to LID {} of {peer}", address.port.lid, path.dest_lid),
        true => log::debug!(
            "{name}: GID {} {} to GID {}, LID {}, traffic class {class} of {peer}",
            path.gid_index,
            address.gid.address(),
            gid::address(&path.dest_gid),
            path.dest_lid
        ),
    }
}

/// The way of a queue pair from its `local` end to its `far` one.
fn path(device: &Device, lanes: &Lanes, (local, far): (LaneEnd, LaneEnd), mtu: u8, traffic_class: u8) -> Result<Path> {
    let Lanes { address, remote, .. } = lanes;
    let path = Path { mtu, traffic_class, psn: local.psn, ..path_to(device, address, &remote.gid, remote.lid)? };
    Ok(Path { dest_qpn: far.qpn, dest_psn: far.psn, ..path })
}

/// The way from `device`, which is at `local`, to a port, as far as it is the same for all queue pairs.
///
/// # Errors
/// The local GID has gone.
pub fn path_to(device: &Device, local: &LocalAddress, gid: &[u8; 16], lid: u16) -> Result<Path> {
    let config = &device.config;
    let reach = match local.port.infiniband {
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
        gid_index: if reach.global { device.index_of(local)? } else { 0 },
        mtu: local.port.mtu,
        service_level: config.service_level,
        traffic_class: config.traffic_class,
        timeout: config.timeout,
        retry_count: config.retry_count,
    })
}

fn to_wire(ece: Ece) -> handshake::Ece {
    let Ece { vendor_id, options, comp_mask } = ece;
    handshake::Ece { vendor_id, options, comp_mask }
}

fn from_wire(ece: handshake::Ece) -> Ece {
    let handshake::Ece { vendor_id, options, comp_mask } = ece;
    Ece { vendor_id, options, comp_mask }
}
