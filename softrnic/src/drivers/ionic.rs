//! ionic: Pensando of AMD.

use crate::abi::consts::qp_type::{RC, UD};
use crate::abi::types::QpCap;
use crate::drivers::driver::{Driver, Verb};
use crate::drivers::own;
use crate::limits::MAX_QP_WR;

pub(super) const DRIVER: Driver = Driver {
    name: "ionic",
    settings: &[("SOFTRNIC_ERROR_DROPS", "1")],
    vendor_id: 0x1dd8,
    max_sge: (8, 8),
    max_reads: 16,
    qp_types: &[RC, UD],
    absent: &[Verb::CreateSrq, Verb::ReregMr, Verb::ResizeCq],
    round: |cap| QpCap { max_send_wr: queue(cap.max_send_wr), max_recv_wr: queue(cap.max_recv_wr), ..cap },
    ..own::DRIVER
};

/// A power of two of entries, of which one stays free.
fn queue(wr: u32) -> u32 {
    ((wr.max(1) + 1).next_power_of_two() - 1).min(MAX_QP_WR)
}
