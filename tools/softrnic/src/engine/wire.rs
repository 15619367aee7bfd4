//! The model of the wire: when a message reaches the peer, and its acknowledgement us.
//!
//! Off unless a port has a latency or a bandwidth: then everything goes as fast as the processor copies. A message
//! occupies the sending port and the receiving one for its length over the lower of their bandwidths, so that two
//! senders into one port share it; it arrives after the sum of both ports' latencies. What a READ brings occupies
//! them in the other direction.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::abi::consts::wr_opcode;
use crate::host::clock::now_ns;
use crate::network::port_id::PortId;
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::shm::slots::{NO_PEER, PortSlot};

/// In strict mode requests are executed this much after their post, so that a buffer that is reused too early shows.
const LATE_NS: u64 = 50_000;

/// Both ends of a connection.
#[inline]
fn ports(qp: &Qp, queue: &SendQueue) -> Option<(&'static PortSlot, &'static PortSlot)> {
    let peer = queue.link.peer;
    let port_at = |port: PortId| qp.fabric.port(port.device, port.port);
    (peer != NO_PEER).then(|| (port_at(qp.port()), port_at(PortId::of_name(peer))))
}

/// What the ports at both ends add to every packet, in ns.
#[inline]
fn latency(ends: (&PortSlot, &PortSlot)) -> u64 {
    ends.0.latency_ns.load(Relaxed) + ends.1.latency_ns.load(Relaxed)
}

/// Plans when a request of `bytes` that is posted now reaches the peer; 0: at once.
#[inline]
pub(crate) fn plan(qp: &Qp, queue: &SendQueue, opcode: u32, bytes: u64) -> u64 {
    let Some(ends) = ports(qp, queue) else { return 0 };
    let is_paced = ends.0.bytes_per_ms.load(Relaxed) | ends.1.bytes_per_ms.load(Relaxed) != 0;
    if !is_paced && !qp.fabric.settings.strict && latency(ends) == 0 && queue.planned == 0 {
        return 0;
    }
    slowly(qp, queue, ends, opcode, bytes)
}

#[cold]
fn slowly(qp: &Qp, queue: &SendQueue, ends: (&PortSlot, &PortSlot), opcode: u32, bytes: u64) -> u64 {
    let now = now_ns();
    let mut due = now + latency(ends);
    if qp.fabric.settings.strict {
        due += LATE_NS;
    }
    let is_read = opcode == wr_opcode::RDMA_READ;
    let (from, to) = if is_read { (ends.1, ends.0) } else { ends };
    let pace = [from, to].map(|end| end.bytes_per_ms.load(Relaxed)).into_iter().filter(|&p| p != 0).min();
    if let Some(pace) = pace {
        let ns = (u128::from(bytes) * 1_000_000 / u128::from(pace)) as u64;
        let begin = now.max(from.tx_until.load(Relaxed)).max(to.rx_until.load(Relaxed));
        due += occupy(&from.tx_until, begin, ns).max(occupy(&to.rx_until, begin, ns)) - now;
    }
    // Nothing overtakes on a connection. A plan that lies in the past binds nobody, and one for now is none.
    let due = if queue.planned > now { due.max(queue.planned) } else { due };
    if due > now { due } else { 0 }
}

/// Takes `ns` of a port's time, not before `begin`; returns when that is over.
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
    match ports(qp, queue).map_or(0, latency) {
        0 => 0,
        latency => now_ns() + latency,
    }
}
