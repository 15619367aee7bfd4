//! The queue pairs of one end of a connection, over all of its rails.

#![deny(clippy::disallowed_methods)]

use super::behind_error::handle_unless_over;
use super::failure::failure;
use super::init_rail::{InitRailQps, KeptQueue, QpSetRail, RailPort};
use super::priority::Priority;
use super::wr_id::WrId;
use crate::error::{Error, Result};
use crate::host::{gid, sysfs};
use crate::net::control::fork::process_id;
use crate::net::device::card_port::CardPort;
use crate::net::device::nic::Nic;
use crate::net::device::open_device::OpenDevice;
use crate::net::peer::state::PeerState;
use crate::proto::MAX_RAILS;
use crate::proto::endpoint::{Endpoint, SINK_BYTES};
use crate::proto::handshake::Negotiated;
use crate::proto::lanes::FlowLabels;
use crate::proto::recovery::path_mtu::{PathMtus, Ports};
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::stripe::Striping;
use crate::proto::{self, MAX_QPS};
use crate::stats::record::ConnStats;
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::queue_pair::{QpCaps, QueuePair};
use crate::verbs::shared::SharedRing;
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Completion, RECV_BATCH, Sge, Target, Write};
use std::sync::Arc;
use std::time::Duration;

/// The queue pairs of one end in state INIT, before the other end is known.
#[derive(Debug)]
pub struct InitQpSet {
    pub(in crate::net) rails: Vec<InitRailQps>,
    /// The description of this end that is sent to the peer.
    pub endpoint: Endpoint,
}

/// A connected queue pair and the receives posted on it.
#[derive(Debug)]
pub struct ConnectedQp {
    /// The queue pair.
    pub qp: QueuePair,
    /// Number of receive work requests that are posted.
    pub receives: u32,
    /// A batch of receives is missing at this number or fewer.
    few_receives: i32,
}

/// The connected queue pairs of one end.
#[derive(Debug)]
pub struct QpSet {
    /// The queue pairs, by index.
    pub qps: Vec<ConnectedQp>,
    pub(in crate::net) rails: Vec<QpSetRail>,
    /// Name of the device, for messages.
    pub(in crate::net) name: String,
    pub(in crate::net) striping: Striping,
    pub(in crate::net) remote: Endpoint,
    /// The marks of its packets.
    pub(in crate::net) priority: Priority,
    /// The flow labels that this end's packets have.
    pub(in crate::net) labels: FlowLabels,
    /// The time from a write to its acknowledgement; zero if unknown.
    pub(in crate::net) round_trip: Duration,
    /// At a sender that was just set up: the GIDs of the listener's ports, from its handle.
    pub listened: [[u8; 16]; MAX_RAILS],
}

impl InitQpSet {
    /// Creates up to `per_rail` queue pairs with capacities `caps` on each of `ports`, within
    /// [`MAX_QPS`]. They use the queues of `kept` that fit.
    ///
    /// # Errors
    /// A port is down, or a device has no more queues.
    pub fn new(
        nic: &Nic,
        ports: &[RailPort],
        per_rail: usize,
        caps: QpCaps,
        kept: &mut Vec<KeptQueue>,
    ) -> Result<Self> {
        let config = &nic.config;
        let caps = if config.inline_data { caps } else { QpCaps { max_inline_data: 0, ..caps } };
        let count = per_rail.min(MAX_QPS / ports.len().max(1));
        let create = |port: &RailPort| {
            InitRailQps::new(nic, port, count, caps, kept).map_err(|e| e.on_rail(port.number))
        };
        let mut rails = ports.iter().map(create).collect::<Result<Vec<_>>>()?;
        // The same number on each rail.
        let count = rails.iter().map(|rail| rail.qps.len()).min().unwrap_or(0);
        rails.iter_mut().for_each(|rail| rail.qps.truncate(count));
        let infiniband = nic.first().infiniband;
        let ends = rails.iter().map(InitRailQps::end).collect::<Result<_>>()?;
        let port = match nic.ports.as_slice() {
            [one] => format!(" port {}", one.number),
            _ => String::new(),
        };
        let endpoint = Endpoint {
            name: format!(
                "{}{port} of process {} on {}",
                nic.name,
                process_id(),
                sysfs::host_name()
            ),
            adaptive_routing: config.adaptive_routing.unwrap_or(infiniband),
            split: config.split,
            failover: config.failover,
            rails: ends,
        };
        Ok(Self { rails, endpoint })
    }

    /// Adds the keys of its `ring` of clear-to-sends to the description of this end.
    ///
    /// # Errors
    /// The ring cannot be registered on one of the devices.
    pub fn describe_ring<const WORDS: usize, const RECORDS: usize>(
        &mut self,
        ring: &mut SharedRing<WORDS, RECORDS>,
    ) -> Result<()> {
        self.rails.iter().zip(&mut self.endpoint.rails).try_for_each(|(rail, end)| {
            end.ring_key = ring
                .rkey(&rail.on.device.domain)
                .map_err(|e| Error::from(e).on_rail(rail.on.number))?;
            Ok(())
        })
    }

    /// Limits packets to the `mtus` of the paths to the peer's ports; `far` returns their GIDs by
    /// rail number, if known.
    pub fn limit_mtus(&mut self, mtus: &PathMtus, far: impl Fn(u8) -> Option<[u8; 16]>) {
        for (rail, end) in self.rails.iter().zip(&mut self.endpoint.rails) {
            if let Some(far) = far(rail.on.number) {
                end.mtu = mtus.limited(&Ports { own: rail.on.port.name.clone(), far }, end.mtu);
            }
        }
    }

    /// The rails that have queue pairs.
    pub fn rail_numbers(&self) -> RailMask {
        self.rails.iter().fold(RailMask::NONE, |rails, rail| rails | RailMask::only(rail.on.number))
    }

    /// Destroys the queue pairs that the connection does not use on `terms`.
    pub fn truncate(&mut self, terms: &Negotiated) {
        let numbers = terms.striping.rail_numbers();
        self.endpoint = self.endpoint.over(self.rail_numbers(), numbers);
        self.endpoint.truncate(numbers.count().into(), terms.qps_per_rail());
        self.rails.retain(|rail| numbers.contains(rail.on.number));
        for rail in &mut self.rails {
            rail.qps.truncate(terms.qps_per_rail());
        }
    }
}

impl ConnectedQp {
    /// A queue pair without receives, which misses none.
    pub fn new(qp: QueuePair) -> Self {
        Self { qp, receives: 0, few_receives: -1 }
    }

    /// Whether a batch of receives is missing.
    #[inline(always)]
    fn lacks_receives(&self) -> bool {
        self.receives as i32 <= self.few_receives
    }

    /// Counts a consumed receive. Returns whether a batch is missing, which [`Self::post_missing`]
    /// posts.
    #[inline(always)]
    pub fn count_receive(&mut self) -> bool {
        // If a device completes more than were posted, the next batch corrects the number.
        self.receives = self.receives.wrapping_sub(1);
        self.lacks_receives()
    }

    /// Posts receives up to `count`, a multiple of a batch, now and whenever they are consumed.
    ///
    /// # Errors
    /// The device refuses.
    pub fn keep_receives(&mut self, count: u32) -> Result<()> {
        self.few_receives = count as i32 - RECV_BATCH as i32;
        self.post_missing()
    }

    /// Posts missing receives, in whole batches.
    ///
    /// # Errors
    /// The device refuses.
    #[inline]
    pub fn post_missing(&mut self) -> Result<()> {
        while self.lacks_receives() {
            self.qp.post_receives(RECV_BATCH)?;
            self.receives += RECV_BATCH as u32;
        }
        Ok(())
    }
}

impl QpSet {
    /// Posts receives on each queue pair, as [`ConnectedQp::keep_receives`] does.
    ///
    /// # Errors
    /// The device refuses.
    pub fn keep_receives(&mut self, count: u32) -> Result<()> {
        let striping = self.striping;
        (0..).map(proto::QpIndex).zip(&mut self.qps).try_for_each(|(index, connected)| {
            connected.keep_receives(count).map_err(|e| e.on_rail(striping.rail_of(index)))
        })
    }

    /// Posts a write of this many `bytes`, at most [`SINK_BYTES`], over queue pair `index`, as
    /// [`WrId::Probe`]. A write of no bytes also has a valid address and key, since a device may
    /// check them.
    ///
    /// # Errors
    /// There is no such queue pair, or the device refuses.
    pub fn post_probe(&mut self, index: proto::QpIndex, bytes: u32) -> Result<()> {
        let place = usize::from(self.striping.place_of(index));
        let (Some(on), Some(far), Some(connected)) = (
            self.rails.get(place),
            self.remote.rails.get(place),
            self.qps.get_mut(usize::from(index.0)),
        ) else {
            return Err(Error::internal(format!("{index:?} does not exist")));
        };
        connected.qp.post_write(&Write {
            id: WrId::Probe { qp: index.0 }.to_bits(),
            local: Sge {
                addr: on.sink.addr(),
                length: bytes.min(SINK_BYTES as u32),
                lkey: on.sink.lkey(),
            },
            target: Target { addr: far.sink.addr, rkey: far.sink.key },
            signaled: true,
            ..Write::default()
        })?;
        Ok(())
    }

    /// The path MTU of queue pair `index`, as an `ibv_mtu` code.
    pub fn path_mtu(&self, index: proto::QpIndex) -> u8 {
        self.rails.get(usize::from(self.striping.place_of(index))).map_or(0, |on| on.mtu)
    }

    /// Whether all completion queues and devices report what arrives, as far as is known.
    pub fn is_reporting(&self) -> bool {
        self.rails.iter().all(|on| !on.queue.has_failed() && !on.device.is_lost())
    }

    /// Takes all queue pairs out.
    pub fn take(&mut self) -> Self {
        let (name, remote) = (self.name.clone(), self.remote.clone());
        let empty = Self {
            qps: Vec::new(),
            rails: Vec::new(),
            name,
            striping: self.striping,
            remote,
            priority: self.priority,
            labels: self.labels.clone(),
            round_trip: self.round_trip,
            listened: self.listened,
        };
        std::mem::replace(self, empty)
    }

    /// Bytes of inline data that all of them accept in a work request.
    pub fn inline_bytes(&self) -> u32 {
        self.qps.iter().map(|connected| connected.qp.inline_bytes()).min().unwrap_or(0)
    }

    /// Whether there is more than one rail.
    #[inline(always)]
    pub fn are_on_several_rails(&self) -> bool {
        self.rails.len() > 1
    }

    /// Lets a failure of one of the completion queues end or recover `peer`'s connection, and no
    /// other. Call it after [`Nic::watch`].
    pub fn watch(&self, peer: &Arc<PeerState>) {
        for on in &self.rails {
            if let Some(watcher) = on.port.card.started_watcher() {
                watcher.events().watch_queue(&on.queue, peer);
            }
        }
    }

    /// The ports in use, each with its rail number and device.
    pub fn ports(&self) -> impl Iterator<Item = (u8, &Arc<CardPort>, Arc<OpenDevice>)> {
        self.rails.iter().map(|on| (on.number, &on.port, Arc::clone(&on.device)))
    }

    /// The devices in use, each with its rail number.
    pub fn devices(&self) -> impl Iterator<Item = (u8, &Arc<OpenDevice>)> {
        self.rails.iter().map(|on| (on.number, &on.device))
    }

    /// Writes the rails and queue pair numbers into the record of this end.
    pub fn record_in(&self, stats: &ConnStats) {
        let rails = self.rails.iter().map(|on| (on.number, on.port.name.as_str()));
        stats.set_queue_pairs(rails, self.qps.iter().map(|connected| connected.qp.number()));
    }

    /// How long the rails need for `bytes` at their nominal speed.
    pub fn time_to_carry(&self, bytes: u64) -> Duration {
        let mbps: u64 = self.remote.rails.iter().map(|rail| u64::from(rail.speed_mbps)).sum();
        Duration::from_micros(bytes * 8 / mbps.max(1))
    }

    /// The port of a completion queue that has failed.
    pub fn failed_queue(&self) -> Option<&str> {
        let failed = self.rails.iter().find(|on| on.queue.has_failed());
        failed.map(|on| on.port.name.as_str())
    }

    /// The completion queue of the first rail. Most connections have no other.
    #[inline(always)]
    pub fn first_queue(&mut self) -> Option<&mut CompletionQueue> {
        self.rails.first_mut().map(|on| &mut on.queue)
    }

    /// Polls a batch of completions of each rail and handles them as [`Self::for_each_success`]
    /// does. Returns their number. An error on one rail does not stop those of the others, which
    /// may complete a request.
    ///
    /// # Errors
    /// The error of the first rail that has one.
    #[inline(always)]
    pub fn poll_rails(
        &mut self,
        peer: &Arc<PeerState>,
        mut handle: impl FnMut(&mut [ConnectedQp], &Completion) -> Result<()>,
    ) -> Result<usize> {
        let (mut polled, mut outcome) = (0, Ok(()));
        for rail in 0..self.rails.len() {
            let mut batch = Batch::default();
            let of_rail = self.rails[rail].queue.poll(&mut batch).map_err(Error::from).and_then(
                |completions| {
                    polled += completions.len();
                    self.for_each_success(peer, completions, Ok(()), &mut handle)
                },
            );
            outcome = outcome.and(of_rail);
        }
        outcome.map(|()| polled)
    }

    /// Calls `handle` for the successful completions, unless the connection cannot continue.
    /// `outcome` is the result so far.
    ///
    /// # Errors
    /// A completion has failed, or else `handle` fails. A failed completion takes precedence, as it
    /// says more.
    #[inline(always)]
    pub fn for_each_success(
        &mut self,
        peer: &Arc<PeerState>,
        completions: &[Completion],
        mut outcome: Result<()>,
        mut handle: impl FnMut(&mut [ConnectedQp], &Completion) -> Result<()>,
    ) -> Result<()> {
        let mut failed: Option<&Completion> = None;
        for completion in completions {
            if completion.status() != Status::SUCCESS {
                handle_flushed(&mut self.qps, completion);
                // An error that would recur on new queue pairs takes precedence: others may have
                // been flushed before it.
                failed = failed.filter(|known| !is_worse(completion, known)).or(Some(completion));
            } else {
                handle_unless_over(&mut outcome, || handle(&mut self.qps, completion));
            }
        }
        match failed {
            Some(completion) => Err(self.failure(peer, completion)),
            None => outcome,
        }
    }

    /// The error for a work request that has failed.
    #[cold]
    #[inline(never)]
    pub(super) fn failure(&self, peer: &PeerState, completion: &Completion) -> Error {
        let qp = WrId::from_bits(completion.id()).qp();
        let is_unanswered = completion.status() == Status::RETRY_EXCEEDED;
        let trouble = is_unanswered.then(|| self.trouble(qp)).flatten();
        let error = failure(completion, &self.ends(qp), trouble, peer);
        if completion.status().is_recoverable() { error.recoverable() } else { error }
    }

    /// What in the addresses of queue pair `qp` may cause a fault of its path.
    fn trouble(&self, qp: u8) -> Option<String> {
        let place = usize::from(qp) % self.rails.len().max(1);
        let (on, far) = (self.rails.get(place)?, self.remote.rails.get(place)?);
        on.port.trouble_towards(&on.address, &far.gid)
    }

    /// For messages: the port of queue pair `qp`, and its two ends.
    fn ends(&self, qp: u8) -> (String, String) {
        let number = usize::from(qp) % self.rails.len().max(1);
        let (Some(QpSetRail { port, address, .. }), Some(far)) =
            (self.rails.get(number), self.remote.rails.get(number))
        else {
            return (self.name.clone(), String::new());
        };
        let on = match self.rails.len() {
            1 => port.name.clone(),
            _ => format!("{} (rail {number} of {})", port.name, self.name),
        };
        let qpn = self.qps.get(usize::from(qp)).map_or(0, |c| c.qp.number());
        let remote_qpn = self.remote.qp_end(proto::QpIndex(qp), self.striping).map_or(0, |l| l.qpn);
        let between = format!(
            "local GID {} (index {}) LID {} queue pair {qpn}, remote GID {} LID {} queue pair {remote_qpn} of {}",
            gid::address(&address.gid.gid),
            address.gid.index,
            address.port.lid,
            gid::address(&far.gid),
            far.lid,
            far.name,
        );
        (on, between)
    }
}

/// Whether `completion` would fail again on new queue pairs, and `known` would not.
fn is_worse(completion: &Completion, known: &Completion) -> bool {
    known.status().is_recoverable() && !completion.status().is_recoverable()
}

/// Handles a failed work request. A flushed receive is no longer posted.
#[cold]
#[inline(never)]
fn handle_flushed(qps: &mut [ConnectedQp], completion: &Completion) {
    if let WrId::Receive { qp } = WrId::from_bits(completion.id())
        && let Some(connected) = qps.get_mut(usize::from(qp))
    {
        connected.receives = connected.receives.saturating_sub(1);
    }
}
