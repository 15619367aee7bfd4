//! The model of the wire: when a message reaches the peer, and its acknowledgement us.
//!
//! Off unless a port has a latency or a bandwidth, or there are paths: then everything goes as fast as the processor copies. A message
//! occupies the sending port and the receiving one for its length over the lower of their bandwidths, so that two
//! senders into one port share it; it arrives after the sum of both ports' latencies. The data of a READ occupies
//! them in the other direction.
//!
//! Where paths are modelled (`SOFTRNIC_PATHS`), a message also occupies the path that its queue pair's packets take, for its length over
//! the path's bandwidth: messages that take the same path from the same port share it, those on other paths do not wait. In a fabric that
//! spreads packets (`SOFTRNIC_SPRAY`), it occupies every path for its part of the length. The data of a READ takes no path.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::abi::consts::wr_opcode;
use crate::host::clock::now_ns;
use crate::network::port_id::PortId;
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::shm::slots::{NO_PEER, PathSlot, PortSlot};

/// In strict mode requests are executed this much after their post, so that a buffer that is reused too early shows.
const LATE_NS: u64 = 50_000;

/// What a message passes: both ports, and the path between them where paths are modelled.
#[derive(Clone, Copy)]
struct Way {
    from: &'static PortSlot,
    to: &'static PortSlot,
    /// None where paths are not modelled; one; or all of them, in a fabric that spreads packets.
    paths: &'static [PathSlot],
}

impl Way {
    #[inline]
    fn of(qp: &Qp, queue: &SendQueue) -> Option<Self> {
        let peer = queue.link.peer;
        let port_at = |port: PortId| qp.fabric.port(port.device, port.port);
        let from = port_at(qp.port());
        let paths = match queue.link.path {
            None => &[],
            Some(_) if qp.fabric.settings.spray => &from.paths[..qp.fabric.topology.paths() as usize],
            Some(path) => from.paths.get(path as usize).map_or(&[][..], std::slice::from_ref),
        };
        (peer != NO_PEER).then(|| Self { from, to: port_at(PortId::of_name(peer)), paths })
    }

    /// What it adds to every packet, in ns.
    #[inline]
    fn latency(self) -> u64 {
        let ports = self.from.latency_ns.load(Relaxed) + self.to.latency_ns.load(Relaxed);
        ports + self.paths.iter().map(|path| path.latency_ns.load(Relaxed)).max().unwrap_or(0)
    }

    /// Whether messages wait for those before them.
    #[inline]
    fn is_paced(self) -> bool {
        self.from.bytes_per_ms.load(Relaxed) | self.to.bytes_per_ms.load(Relaxed) != 0 || !self.paths.is_empty()
    }
}

/// Plans when a request of `bytes` that is posted now reaches the peer; 0: at once.
#[inline]
pub(crate) fn plan(qp: &Qp, queue: &SendQueue, opcode: u32, bytes: u64) -> u64 {
    let Some(way) = Way::of(qp, queue) else { return 0 };
    if !way.is_paced() && !qp.fabric.settings.strict && way.latency() == 0 && queue.planned == 0 {
        return 0;
    }
    slowly(qp, queue, way, opcode, bytes)
}

#[cold]
fn slowly(qp: &Qp, queue: &SendQueue, way: Way, opcode: u32, bytes: u64) -> u64 {
    let now = now_ns();
    let mut due = now + way.latency();
    if qp.fabric.settings.strict {
        due += LATE_NS;
    }
    let is_read = opcode == wr_opcode::RDMA_READ;
    let (from, to) = if is_read { (way.to, way.from) } else { (way.from, way.to) };
    let pace = [from, to].map(|end| end.bytes_per_ms.load(Relaxed)).into_iter().filter(|&p| p != 0).min();
    let mut passed = now;
    if let Some(pace) = pace {
        let begin = now.max(from.tx_until.load(Relaxed)).max(to.rx_until.load(Relaxed));
        let ns = time_for(bytes, pace);
        passed = occupy(&from.tx_until, begin, ns).max(occupy(&to.rx_until, begin, ns));
    }
    let count = way.paths.len() as u64;
    for (path, number) in way.paths.iter().zip(0..).filter(|_| !is_read) {
        let part = (bytes + number) / count;
        path.bytes.fetch_add(part, Relaxed);
        let pace = path.bytes_per_ms.load(Relaxed);
        if pace != 0 {
            // Not before it is free. Meanwhile the ports carry what takes other paths.
            passed = passed.max(occupy(&path.until, now, time_for(part, pace)));
        }
    }
    due += passed - now;
    // Nothing overtakes on a connection. A plan that lies in the past binds nobody, and one for now is none.
    let due = if queue.planned > now { due.max(queue.planned) } else { due };
    if due > now { due } else { 0 }
}

/// Nanoseconds for `bytes` at `pace`, in bytes per millisecond, which is not 0.
fn time_for(bytes: u64, pace: u64) -> u64 {
    (u128::from(bytes) * 1_000_000 / u128::from(pace)) as u64
}

/// Takes `ns` of the time of a port or a path, not before `begin`; returns when that is over.
fn occupy(until: &AtomicU64, begin: u64, ns: u64) -> u64 {
    let mut seen = until.load(Relaxed);
    loop {
        let end = begin.max(seen) + ns;
        match until.compare_exchange_weak(seen, end, Relaxed, Relaxed) {
            Ok(_) => return end,
            Err(now) => seen = now,
        }
    }
}

/// When the acknowledgement of what is executed now is here; 0: at once.
#[inline]
pub(crate) fn ack_time(qp: &Qp, queue: &SendQueue) -> u64 {
    match Way::of(qp, queue).map_or(0, Way::latency) {
        0 => 0,
        latency => now_ns() + latency,
    }
}
