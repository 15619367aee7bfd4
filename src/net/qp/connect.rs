//! Connecting the queue pairs of one end to those of the other, from INIT to RTS.
//!
//! A failed attempt is repeated after a pause, since the peer's address may not be resolvable yet.
//! Nothing waits here: NCCL calls until all are connected. One attempt lasts while the kernel tries
//! to resolve the address, up to a second on RoCE.

use super::init_rail::InitRailQps;
use super::priority::Priority;
use super::set::{ConnectedQp, InitQpSet, QpSet};
use super::wr_id::WrId;
use crate::error::{Error, Result};
use crate::host::config::Retries;
use crate::host::{gid, ib, random};
use crate::net::device::card_port::{CardPort, LocalAddress};
use crate::net::device::nic::Nic;
use crate::proto;
use crate::proto::endpoint::{self, Endpoint, QpEnd, RailEnd};
use crate::proto::handshake::Negotiated;
use crate::proto::lanes::FlowLabels;
use crate::verbs::clock;
use crate::verbs::path::{ConnectError, Ece, Path};
use crate::verbs::queue_pair::InitQueuePair;
use std::time::{Duration, Instant};

/// The queue pairs of one end while they are being connected.
#[derive(Debug)]
pub struct ConnectingQpSet {
    /// The description of this end that is sent to the peer.
    pub endpoint: Endpoint,
    /// The queue pairs that are connected.
    connected: QpSet,
    /// The others, of all rails, in descending order: the next one is last.
    waiting: Vec<InitQueuePair>,
    attempts: Attempts,
    /// Why the device refused a flow label, until a queue pair without one is connected.
    refused_label: Option<Error>,
}

/// The two ends of a rail.
#[derive(Debug, Clone, Copy)]
struct RailEnds<'a> {
    rail: &'a CardPort,
    local: &'a LocalAddress,
    far: &'a RailEnd,
    remote: &'a Endpoint,
    /// The rail's number, and its place among the rails in use.
    number: u8,
    place: usize,
    /// The path MTU.
    mtu: u8,
}

/// The attempts to connect one queue pair.
#[derive(Debug)]
struct Attempts {
    retries: Retries,
    failed: u32,
    first: Instant,
    next: Instant,
    /// Why the latest attempt failed; empty if none did.
    trouble: String,
}

impl InitQpSet {
    /// Begins to connect each queue pair to its counterpart in `remote`, on `terms`. Packets have
    /// `priority` and one of `labels`. Failed attempts are repeated according to `retries`.
    ///
    /// # Errors
    /// There are fewer queue pairs than in `terms`.
    pub fn connect(
        mut self,
        nic: &Nic,
        remote: Endpoint,
        terms: &Negotiated,
        priority: Priority,
        labels: FlowLabels,
        retries: Retries,
    ) -> Result<ConnectingQpSet> {
        self.truncate(terms);
        let striping = terms.striping;
        let (mut rails, mut by_rail) = (Vec::new(), Vec::new());
        for (InitRailQps { mut on, qps }, (end, far)) in
            self.rails.into_iter().zip(self.endpoint.rails.iter().zip(&remote.rails))
        {
            on.mtu = end.mtu.min(far.mtu);
            rails.push(on);
            by_rail.push(qps.into_iter());
        }
        let mut waiting = Vec::with_capacity(striping.qp_count().into());
        for index in (0..striping.qp_count()).map(proto::QpIndex) {
            let qp =
                by_rail.get_mut(usize::from(striping.place_of(index))).and_then(Iterator::next);
            let (Some(qp), Some(far)) = (qp, remote.qp_end(index, striping)) else {
                return Err(is_missing(index));
            };
            // A replying peer only names options that this end has offered.
            if let Some(offered) = far.ece.filter(|_| nic.config.ece) {
                qp.adopt_ece(from_wire(offered));
            }
            waiting.push(qp);
        }
        waiting.reverse();
        let qps = Vec::with_capacity(waiting.len());
        let (name, round_trip) = (nic.name.clone(), nic.round_trips.to(&remote));
        let listened = Default::default();
        let connected =
            QpSet { qps, rails, name, striping, remote, priority, labels, round_trip, listened };
        let attempts = Attempts::new(retries);
        Ok(ConnectingQpSet {
            endpoint: self.endpoint,
            connected,
            waiting,
            attempts,
            refused_label: None,
        })
    }

    /// Adds the vendor options that each device offers to the description of this end.
    pub fn offer_ece(&mut self) {
        for (end, rail) in self.endpoint.rails.iter_mut().zip(&self.rails) {
            for (told, qp) in end.qps.iter_mut().zip(&rail.qps) {
                told.ece = qp.ece().map(to_wire);
            }
        }
    }
}

impl ConnectingQpSet {
    /// Connects as many queue pairs as possible now. Returns whether all are connected.
    ///
    /// # Errors
    /// An attempt has failed, and must not be repeated.
    pub fn advance(&mut self, nic: &Nic) -> Result<bool> {
        let striping = self.connected.striping;
        while let Some(qp) = self.waiting.pop_if(|_| self.attempts.next <= clock::now()) {
            let index = proto::QpIndex(u8::try_from(self.connected.qps.len()).unwrap_or(u8::MAX));
            let ends = RailEnds::of(index, &self.connected).ok_or_else(|| is_missing(index))?;
            let (Some(local), Some(far)) =
                (self.endpoint.qp_end_mut(index, striping), ends.remote.qp_end(index, striping))
            else {
                return Err(is_missing(index));
            };
            let path = ends
                .path(*local, far, self.connected.priority)
                .map_err(|e| e.on_rail(ends.number))?;
            let has_lanes = striping.qp_count() > striping.rails();
            let labels = &self.connected.labels;
            let flow_label =
                if has_lanes { labels.of(ends.number, index.0 / striping.rails()) } else { 0 };
            let path = Path { flow_label, ..path };
            let is_first = index.0 < striping.rails();
            if is_first && self.attempts.failed == 0 {
                ends.log(&path);
            }
            match qp.try_connect(&path, WrId::Receive { qp: index.0 }.to_bits()) {
                Ok(qp) => {
                    self.attempts.succeed(&ends);
                    // Now it is known that the label was the cause.
                    self.refused_label.take().iter().for_each(|error| log_no_labels(nic, error));
                    let agreed = qp.ece().filter(|_| far.ece.is_some() && nic.config.ece);
                    if let Some(ece) = agreed.filter(|_| is_first) {
                        let (name, peer) = (&ends.rail.name, ends.peer());
                        log::debug!(
                            "{name} and {peer} use ECE options {:#x} of {:#x}",
                            ece.options,
                            ece.vendor_id
                        );
                    }
                    local.ece = agreed.map(to_wire);
                    self.connected.qps.push(ConnectedQp::new(qp));
                }
                Err(failed) => {
                    let ConnectError { qp, error } = *failed;
                    if flow_label != 0
                        && matches!(error.errno, Some(libc::EINVAL | libc::EOPNOTSUPP))
                    {
                        self.refused_label = Some(error.into());
                        self.connected.labels = FlowLabels::NONE;
                        self.waiting.push(qp);
                        continue;
                    }
                    ends.rail.card.device().context.forget_port(ends.rail.number);
                    self.attempts.fail(&ends, error.into()).map_err(|e| e.on_rail(ends.number))?;
                    self.waiting.push(qp);
                }
            }
        }
        Ok(self.waiting.is_empty())
    }

    /// When to call [`Self::advance`] again after it has returned `false`.
    pub fn next_attempt(&self) -> Instant {
        self.attempts.next
    }

    /// Why the latest attempt failed; empty if none did.
    pub fn trouble(&self) -> &str {
        &self.attempts.trouble
    }

    /// The error for a queue pair that was not connected within `limit`.
    pub fn too_late(&self, limit: impl std::fmt::Display) -> Error {
        let index = proto::QpIndex(u8::try_from(self.connected.qps.len()).unwrap_or(u8::MAX));
        let error =
            Error::os(format_args!("connecting queue pairs within {limit}"), libc::ETIMEDOUT);
        let error = error.context(self.trouble());
        match RailEnds::of(index, &self.connected) {
            Some(ends) => error.on_rail(ends.number),
            None => error,
        }
    }

    /// The connected queue pairs, and the description of this end for the peer.
    pub fn finish(self) -> (QpSet, Endpoint) {
        (self.connected, self.endpoint)
    }
}

/// Logs that a device has refused a path with a flow label by `error`, and accepted the same path
/// without one.
fn log_no_labels(nic: &Nic, error: &Error) {
    let text = format!(
        "{}: the lanes of a connection keep their paths, as the device refuses a flow label: {error}",
        nic.name
    );
    match nic.notices.line("labels", &text) {
        Some(line) => log::info!("{line}"),
        None => log::debug!("{text}"),
    }
}

fn is_missing(index: proto::QpIndex) -> Error {
    Error::internal(format!("{index:?} is missing"))
}

impl<'a> RailEnds<'a> {
    /// The ends of the rail that `index` is on.
    fn of(index: proto::QpIndex, qps: &'a QpSet) -> Option<Self> {
        let place = usize::from(qps.striping.place_of(index));
        let on = qps.rails.get(place)?;
        let (rail, local) = (&*on.port, &on.address);
        Some(Self {
            rail,
            local,
            far: qps.remote.rails.get(place)?,
            remote: &qps.remote,
            number: on.number,
            place,
            mtu: on.mtu,
        })
    }

    /// The far end, for messages.
    fn peer(&self) -> String {
        self.remote.name_of(self.place)
    }

    /// The path of a queue pair from its `local` end to its `far` one.
    fn path(&self, local: QpEnd, far: QpEnd, priority: Priority) -> Result<Path> {
        let (gid, lid) = (&self.far.gid, self.far.lid);
        let path = path_to(self.rail, self.local, gid, lid, priority, self.remote.failover)?;
        let path = Path { mtu: self.mtu, ..path };
        Ok(Path { psn: local.psn, dest_qpn: far.qpn, dest_psn: far.psn, ..path })
    }

    /// Logs the addresses of both ends.
    fn log(&self, path: &Path) {
        let (Self { local, rail, .. }, peer, class) = (self, self.peer(), path.traffic_class);
        let mtu = 128_u32 << path.mtu;
        rail.log_other_network(local, &self.far.gid, &peer);
        match path.global {
            false => {
                log::debug!(
                    "{}: LID {} to LID {}, MTU {mtu}, of {peer}",
                    rail.name,
                    local.port.lid,
                    path.dest_lid
                )
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
        let now = clock::now();
        Self { retries, failed: 0, first: now, next: now, trouble: String::new() }
    }

    fn succeed(&mut self, ends: &RailEnds<'_>) {
        if self.failed > 0 {
            log::info!("{}: connected at attempt {}", ends.rail.name, self.failed + 1);
        }
        *self = Self::new(self.retries);
    }

    /// Records a failed attempt.
    ///
    /// # Errors
    /// There were too many attempts, or the error is permanent.
    fn fail(&mut self, ends: &RailEnds<'_>, error: Error) -> Result<()> {
        let Retries { count, pause_ms, .. } = self.retries;
        self.failed += 1;
        let passes = self.retries.apply_to(error.errno);
        let error = with_hint(error);
        if self.failed > count || !passes {
            return Err(self.give_up(ends, error));
        }
        if self.failed == 1 {
            self.first = clock::now();
            log::info!(
                "{}: {error}; up to {count} more attempts, {pause_ms} ms apart (NCCL_IB_MQP_RETRY_CNT, \
                 NCCL_IB_MQP_RETRY_SLEEP_MSEC)",
                ends.rail.name,
            );
        }
        self.trouble =
            format!("{}: {error}, {} of {} attempts", ends.rail.name, self.failed, count + 1);
        self.next = clock::now() + Duration::from_millis(pause_ms);
        Ok(())
    }

    fn give_up(&self, ends: &RailEnds<'_>, mut error: Error) -> Error {
        let RailEnds { rail, local, far, .. } = ends;
        let seconds = clock::since(self.first).as_secs_f32();
        if self.failed > 1 {
            error = error.context(format_args!(
                "{} attempts in {seconds:.1} s (NCCL_IB_MQP_RETRY_CNT)",
                self.failed
            ));
        }
        if let Some(trouble) = rail.trouble_towards(local, &far.gid) {
            error = error.context(format_args!("likely: {trouble}"));
        }
        error.context(format_args!(
            "{} with GID {} (index {}), peer {} with GID {}",
            rail.name,
            local.gid.address(),
            local.gid.index,
            ends.peer(),
            gid::address(&far.gid)
        ))
    }
}

/// Adds the usual meaning of its errno to `error` of `ibv_modify_qp`.
pub fn with_hint(error: Error) -> Error {
    match error.errno {
        Some(libc::EINVAL | libc::ENODATA) if error.operation.ends_with(" RTR") => {
            error.hint("is the GID index right? NCCL_IB_GID_INDEX chooses it")
        }
        Some(libc::ETIMEDOUT) => error.hint("the peer's address cannot be resolved: are both ports in one network?"),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            error.hint("no route leads from the port's network interface to the peer's address: see `ip route get`")
        }
        Some(libc::ENODEV | libc::EADDRNOTAVAIL) => error.hint(
            "the network interface with the port's address is gone, has lost the address, or is in another network namespace",
        ),
        Some(libc::EPERM | libc::EACCES) => {
            error.hint("the kernel forbids it: a cgroup of devices, seccomp, or the capabilities of the container")
        }
        Some(libc::ENOMEM) => error.hint("the device has no room left, or the cgroup has reached its rdma.max"),
        _ => error,
    }
}

/// The path from `rail`, addressed as `local`, to the port with `gid` and `lid`, for packets with
/// `priority`. It lacks what differs by queue pair. Whether the peer `recovers` from faults decides
/// the timeout.
///
/// # Errors
/// The GID table no longer has the local GID.
pub fn path_to(
    rail: &CardPort,
    local: &LocalAddress,
    gid: &[u8; 16],
    lid: u16,
    priority: Priority,
    recovers: bool,
) -> Result<Path> {
    let config = &rail.config;
    let route = match local.port.is_infiniband() {
        true => ib::route(&local.gid.gid, gid, lid, local.port.grh_required),
        false => ib::Route { lid, global: true },
    };
    Ok(Path {
        dest_qpn: 0,
        dest_psn: 0,
        psn: 0,
        dest_gid: *gid,
        dest_lid: route.lid,
        global: route.global,
        gid_index: if route.global { rail.index_of(local)? } else { 0 },
        mtu: local.port.mtu,
        service_level: priority.service_level,
        traffic_class: priority.traffic_class,
        flow_label: 0,
        timeout: config.timeout_to(recovers),
        retry_count: config.retry_count,
    })
}

/// The flow labels of a connection of `nic`, if its lanes may move to other paths: on Ethernet,
/// where labels choose the path.
///
/// # Errors
/// The kernel gives no random numbers.
pub fn flow_labels(nic: &Nic) -> Result<FlowLabels> {
    match nic.has_new_paths() {
        true => Ok(FlowLabels::random(u64::from_le_bytes(random::bytes()?))),
        false => Ok(FlowLabels::NONE),
    }
}

fn to_wire(ece: Ece) -> endpoint::Ece {
    let Ece { vendor_id, options, comp_mask } = ece;
    endpoint::Ece { vendor_id, options, comp_mask }
}

fn from_wire(ece: endpoint::Ece) -> Ece {
    let endpoint::Ece { vendor_id, options, comp_mask } = ece;
    Ece { vendor_id, options, comp_mask }
}
