//! The queue pairs of one end on one rail, before they are connected.

use crate::error::{Error, Result};
use crate::host::random;
use crate::net::device::card_port::{CardPort, LocalAddress, partition_index};
use crate::net::device::nic::Nic;
use crate::net::device::open_device::OpenDevice;
use crate::proto::endpoint::{QpEnd, RailEnd, SinkEnd};
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::queue_pair::{InitQueuePair, QpCaps, RemoteAccess, ResetQueuePair};
use crate::verbs::sink::Sink;
use crate::verbs::thread_domain::ThreadDomain;
use std::sync::Arc;

/// The queue pairs on one rail.
#[derive(Debug)]
pub(in crate::net) struct InitRailQps {
    pub(in crate::net) on: QpSetRail,
    pub(in crate::net) qps: Vec<InitQueuePair>,
}

/// The port that a rail uses.
#[derive(Debug, Clone)]
pub struct RailPort {
    /// The rail's number.
    pub number: u8,
    /// The port.
    pub port: Arc<CardPort>,
    /// Known GIDs of the peer. The chosen GID is near to one of them, preferably the first.
    pub towards: Vec<[u8; 16]>,
}

/// What the queue pairs on one rail share.
#[derive(Debug)]
pub(in crate::net) struct QpSetRail {
    /// The rail's number.
    pub(in crate::net) number: u8,
    /// The port that it uses.
    pub(in crate::net) port: Arc<CardPort>,
    /// The port's device as it was open when the queue pairs were created.
    pub(in crate::net) device: Arc<OpenDevice>,
    pub(in crate::net) address: LocalAddress,
    pub(in crate::net) queue: CompletionQueue,
    /// How many completions the queue has room for.
    entries: u32,
    /// The thread domain of the queue pairs, if any.
    thread: Option<Arc<ThreadDomain>>,
    /// The path MTU, as an `ibv_mtu` code; the port's own until the peer's is known.
    pub(in crate::net) mtu: u8,
    /// The device's sink: the source of path tests, announced to the peer.
    pub(in crate::net) sink: Arc<Sink>,
}

/// A completion queue whose queue pairs are destroyed, and their thread domain. Others of the same
/// connection and device may use both, which saves the commands for new ones.
#[derive(Debug)]
pub struct KeptQueue {
    // Declared in this order: what is on a device is released before it is closed.
    queue: CompletionQueue,
    entries: u32,
    thread: Arc<ThreadDomain>,
    device: Arc<OpenDevice>,
}

impl KeptQueue {
    /// Whether its device is lost.
    pub fn is_lost(&self) -> bool {
        self.device.is_lost()
    }

    /// Whether it serves queue pairs on `device` with so many completions.
    fn fits(&self, device: &Arc<OpenDevice>, entries: u32) -> bool {
        Arc::ptr_eq(&self.device, device) && self.entries >= entries && !self.queue.has_failed()
    }
}

impl QpSetRail {
    /// The completion queue, for other queue pairs: these are destroyed. `None`: it can serve no
    /// others, or has no thread domain.
    pub(super) fn into_kept(self) -> Option<KeptQueue> {
        let Self { device, mut queue, entries, thread, .. } = self;
        let thread = thread?;
        let can_serve = queue.clear() && !device.is_lost();
        can_serve.then_some(KeptQueue { queue, entries, thread, device })
    }
}

impl InitRailQps {
    /// Creates up to `count` queue pairs on the port of a rail; fewer lanes if the device has no
    /// more. They use a queue of `kept`, if one fits.
    pub(super) fn new(
        nic: &Nic,
        RailPort { number, port, towards }: &RailPort,
        count: usize,
        caps: QpCaps,
        kept: &mut Vec<KeptQueue>,
    ) -> Result<Self> {
        let address = port.address_towards(towards)?;
        let mut entries = (caps.max_send_wr + caps.max_recv_wr) * count as u32;
        let device = port.card.device();
        let sink = device.sink()?;
        let fitting = kept.iter().position(|one| one.fits(&device, entries));
        let (mut thread, mut queue) = match fitting.map(|place| kept.swap_remove(place)) {
            Some(one) => {
                entries = one.entries;
                (Some(one.thread), one.queue)
            }
            None => create_queue(port, &device, entries)?,
        };
        let mut qps = Vec::with_capacity(count);
        while qps.len() < count {
            match create_qp(port, &device, thread.as_ref(), &queue, caps, RemoteAccess::Write) {
                Ok(qp) => qps.push(qp),
                // The driver may refuse the domain that it has allocated.
                Err(error) if qps.is_empty() && thread.take().is_some() => {
                    log_no_thread_domain(port, &error);
                    queue = CompletionQueue::new(&device.context, entries)?;
                }
                Err(error) if !nic.config.lanes || !is_exhausted(&error) => return Err(error),
                Err(error) if qps.is_empty() => {
                    return Err(error.hint("FERRITE_LANES=1 uses fewer queue pairs"));
                }
                Err(error) => {
                    log_fewer_lanes(nic, qps.len(), count, &error);
                    break;
                }
            }
        }
        let (port, mtu) = (Arc::clone(port), address.port.mtu);
        let on =
            QpSetRail { number: *number, port, device, address, queue, entries, thread, mtu, sink };
        Ok(Self { on, qps })
    }

    pub(super) fn end(&self) -> Result<RailEnd> {
        let rail = &self.on.port;
        let LocalAddress { port, gid } = self.on.address;
        let end = |qp: &InitQueuePair| {
            let psn = u32::from_le_bytes(random::bytes()?) & 0xff_ffff;
            Ok(QpEnd { qpn: qp.number(), psn, ece: None })
        };
        Ok(RailEnd {
            name: format!("{} port {}", rail.name, rail.number),
            infiniband: port.is_infiniband(),
            lid: port.lid,
            gid: gid.gid,
            mtu: port.mtu,
            speed_mbps: rail.speed_mbps,
            ring_key: 0,
            sink: SinkEnd { addr: self.on.sink.addr(), key: self.on.sink.rkey() },
            qps: self.qps.iter().map(end).collect::<Result<_>>()?,
        })
    }
}

/// Whether a device may have no more queue pairs, or no more memory for them.
fn is_exhausted(error: &Error) -> bool {
    matches!(error.errno, Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN))
}

/// A completion queue on `port`, whose device is open as `device`, and the thread domain for it and
/// its queue pairs, if any.
fn create_queue(
    port: &CardPort,
    device: &OpenDevice,
    entries: u32,
) -> Result<(Option<Arc<ThreadDomain>>, CompletionQueue)> {
    let thread = port.config.thread_domains.then(|| ThreadDomain::new(&device.domain)).transpose();
    let thread = thread.unwrap_or_else(|error| {
        log_no_thread_domain(port, &error);
        None
    });
    let queue = match &thread {
        Some(thread) => CompletionQueue::in_thread(thread, entries),
        None => CompletionQueue::new(&device.context, entries),
    }?;
    Ok((thread, queue))
}

/// Logs that a connection on `port` has no thread domain. Most drivers have none.
fn log_no_thread_domain(port: &CardPort, error: impl std::fmt::Display) {
    log::debug!("{}: no thread domain for a connection: {error}", port.name);
}

/// Logs that a connection has `count` lanes on a rail instead of `wanted`, because of `error`.
fn log_fewer_lanes(nic: &Nic, count: usize, wanted: usize, error: &Error) {
    let text = format!("{}: a connection has {count} of {wanted} lanes: {error}", nic.name);
    match nic.notices.line("lanes", &text) {
        Some(line) => log::warn!("{line}"),
        None => log::debug!("{text}"),
    }
}

/// A queue pair on `port` in state INIT, whose device is open as `device`. It completes into
/// `queue`, and is in the thread domain `thread`, if any.
///
/// # Errors
/// The device has no more queue pairs, or the port has no such partition key.
pub fn create_qp(
    port: &CardPort,
    device: &OpenDevice,
    thread: Option<&Arc<ThreadDomain>>,
    queue: &CompletionQueue,
    caps: QpCaps,
    access: RemoteAccess,
) -> Result<InitQueuePair> {
    let pkey_index = partition_index(&device.context, port.number, &port.config)?;
    let qp = ResetQueuePair::new(&device.domain, thread, queue, caps)?;
    qp.initialize(port.number, pkey_index, access).map_err(|error| {
        let keys = device.context.port(port.number).map_or(0, |state| state.pkey_count);
        match error.errno {
            Some(libc::EINVAL) if keys <= pkey_index => Error::from(error).hint(format_args!(
                "NCCL_IB_PKEY={pkey_index}: the port has {keys} partition key(s), from 0"
            )),
            _ => error.into(),
        }
    })
}
