//! hns: HiSilicon's RoCE engine in Kunpeng processors, the third version.

use crate::abi::consts::qp_type::{RC, UD};
use crate::abi::types::QpCap;
use crate::drivers::driver::{Driver, MinQueue, Verb};
use crate::drivers::own;

pub(super) const DRIVER: Driver = Driver {
    name: "hns",
    settings: &[("SOFTRNIC_GIDS", "rich"), ("SOFTRNIC_MAX_INLINE", "1024"), ("SOFTRNIC_INLINE_EXCESS", "grant")],
    vendor_id: 0x19e5,
    min_queue: MinQueue { send: 1, recv: 0 },
    qp_types: &[RC, UD],
    absent: &[Verb::ResizeCq],
    round: |cap| QpCap { max_inline_data: power(cap.max_inline_data), ..cap },
    round_cq: u32::next_power_of_two,
    ..own::DRIVER
};

/// The next power of two; of 0, 0.
fn power(bytes: u32) -> u32 {
    if bytes == 0 { 0 } else { bytes.next_power_of_two() }
}
