//! rxe: soft-RoCE, the software device of Linux, as kernel 6.12 has it. docs/rxe.md has what was seen on it.

use crate::abi::types::QpCap;
use crate::drivers::driver::{Driver, Verb};
use crate::drivers::own;
use crate::limits::MAX_SGE;

pub(super) const DRIVER: Driver = Driver {
    name: "rxe",
    settings: &[
        ("SOFTRNIC_SPEED", "10"),
        ("SOFTRNIC_MAX_INLINE", "512"),
        ("SOFTRNIC_THREAD_DOMAINS", "absent"),
        ("SOFTRNIC_RNR_PLACES", "1"),
        ("SOFTRNIC_STALE_COMPLETIONS", "1"),
        ("SOFTRNIC_RESOLVE_MS", "1000"),
        ("SOFTRNIC_ENDLESS_RETRIES", "1"),
        ("SOFTRNIC_OWN_PORT_DOWN", "fails"),
        ("SOFTRNIC_LOOPBACK_DOWN", "lost"),
        ("SOFTRNIC_FLUSH_ONLY", "1"),
    ],
    fw_ver: "0.0.0",
    vendor_id: 0x00ff_ffff,
    max_mr_size: u64::MAX,
    local_ca_ack_delay: 15,
    absent: &[Verb::ReregMr],
    round,
    ..own::DRIVER
};

const ELEMENT: u32 = 16;

/// Queues are a power of two of entries, one of which stays free. Elements and inline data share their place in an entry.
fn round(cap: QpCap) -> QpCap {
    let queue = |wr: u32| (wr + 1).next_power_of_two() - 1;
    let place = cap.max_inline_data.max(cap.max_send_sge * ELEMENT);
    QpCap {
        max_send_wr: queue(cap.max_send_wr),
        max_recv_wr: queue(cap.max_recv_wr),
        max_send_sge: (place / ELEMENT).min(MAX_SGE),
        max_inline_data: place,
        ..cap
    }
}
