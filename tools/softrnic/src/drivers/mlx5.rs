//! mlx5: ConnectX of NVIDIA. Its limits are the firmware's; softrnic's own stand for them.

use crate::abi::types::QpCap;
use crate::drivers::driver::Driver;
use crate::drivers::own;

pub(super) const DRIVER: Driver = Driver {
    name: "mlx5",
    settings: &[("SOFTRNIC_GIDS", "rich"), ("SOFTRNIC_ECE", "1")],
    // Of a ConnectX-7.
    vendor_id: 0x02c9,
    vendor_part_id: 0x1021,
    max_mr_size: u64::MAX,
    round,
    ..own::DRIVER
};

/// Bytes that a work request of RC has before its data, for any operation: control, UMR control, memory key context, and the most
/// that a memory window adds.
const OVERHEAD: u32 = 16 + 48 + 64 + 64;
/// A work request is so many bytes, or a multiple.
const BLOCK: u32 = 64;
const INLINE_HEADER: u32 = 4;
const ELEMENT: u32 = 16;

/// The send queue is a power of two of bytes, the receive queue of work requests; inline data fills up the last block.
fn round(cap: QpCap) -> QpCap {
    let (mut granted, wr) = (cap, cap.max_send_wr);
    if wr != 0 {
        let data =
            if cap.max_inline_data == 0 { 0 } else { (INLINE_HEADER + cap.max_inline_data).next_multiple_of(ELEMENT) };
        let bytes = (OVERHEAD + data.max(cap.max_send_sge * ELEMENT)).next_multiple_of(BLOCK);
        granted.max_send_wr = (wr * bytes).next_power_of_two() / bytes;
        granted.max_inline_data = bytes - OVERHEAD - INLINE_HEADER;
    }
    if cap.max_recv_wr != 0 {
        granted.max_recv_wr = cap.max_recv_wr.next_power_of_two();
    }
    granted
}
