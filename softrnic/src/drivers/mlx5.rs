//! mlx5: ConnectX of NVIDIA, generation by generation. Most of its limits are larger than
//! softrnic's own, which stand for them.

use crate::abi::types::QpCap;
use crate::drivers::table;
use crate::drivers::table::Driver;

/// What does not depend on the generation.
const COMMON: Driver = Driver {
    vendor_id: 0x02c9,
    max_mr_size: u64::MAX,
    max_ah: i32::MAX,
    round,
    cuts_rnr_timer: true,
    ..table::OWN_DRIVER
};

/// A name for the ConnectX-7.
pub(super) const PLAIN: Driver = Driver { name: "mlx5", ..CX7 };

pub(super) const CX4: Driver = Driver {
    name: "mlx5-cx4",
    settings: GBPS_100,
    vendor_part_id: 0x1013,
    fw_ver: "12.28.2006",
    page_size_cap: PAGES,
    ..COMMON
};

pub(super) const CX5: Driver = Driver {
    name: "mlx5-cx5",
    settings: GBPS_100,
    vendor_part_id: 0x1017,
    fw_ver: "16.31.1014",
    page_size_cap: PAGES,
    max_pd: 1 << 23,
    local_ca_ack_delay: ACK_DELAY,
    ..COMMON
};

pub(super) const CX6: Driver = Driver {
    name: "mlx5-cx6",
    settings: &[GIDS, ECE, ("SOFTRNIC_SPEED", "200")],
    vendor_part_id: 0x101b,
    fw_ver: "20.37.1700",
    page_size_cap: PAGES,
    max_pd: 1 << 23,
    local_ca_ack_delay: ACK_DELAY,
    ..COMMON
};

pub(super) const CX6_DX: Driver = Driver {
    name: "mlx5-cx6dx",
    settings: GBPS_100,
    vendor_part_id: 0x101d,
    fw_ver: "22.32.2004",
    ..COMMON
};

pub(super) const CX7: Driver = Driver {
    name: "mlx5-cx7",
    settings: GBPS_400,
    vendor_part_id: 0x1021,
    fw_ver: "28.42.1000",
    ..COMMON
};

pub(super) const CX8: Driver = Driver {
    name: "mlx5-cx8",
    settings: GBPS_400,
    infiniband_settings: &[("SOFTRNIC_SPEED", "800")],
    vendor_part_id: 0x1023,
    fw_ver: "40.44.1036",
    ..COMMON
};

const GIDS: (&str, &str) = ("SOFTRNIC_GIDS", "rich");
const ECE: (&str, &str) = ("SOFTRNIC_ECE", "1");
const GBPS_100: &[(&str, &str)] = &[GIDS, ECE, ("SOFTRNIC_SPEED", "100")];
const GBPS_400: &[(&str, &str)] = &[GIDS, ECE, ("SOFTRNIC_SPEED", "400")];
/// All sizes of 4 KiB and more.
const PAGES: u64 = !0xfff;
const ACK_DELAY: u8 = 16;

/// Bytes that a work request of RC has before its data, for any operation: control, UMR control,
/// memory key context, and the most that a memory window adds.
const OVERHEAD: u32 = 16 + 48 + 64 + 64;
/// A work request is so many bytes, or a multiple.
const BLOCK: u32 = 64;
const INLINE_HEADER: u32 = 4;
const ELEMENT: u32 = 16;

/// The send queue is a power of two of bytes, the receive queue of work requests; inline data fills
/// up the last block.
fn round(cap: QpCap) -> QpCap {
    let (mut granted, wr) = (cap, cap.max_send_wr);
    if wr != 0 {
        let data = if cap.max_inline_data == 0 {
            0
        } else {
            (INLINE_HEADER + cap.max_inline_data).next_multiple_of(ELEMENT)
        };
        let bytes = (OVERHEAD + data.max(cap.max_send_sge * ELEMENT)).next_multiple_of(BLOCK);
        granted.max_send_wr = (wr * bytes).next_power_of_two() / bytes;
        granted.max_inline_data = bytes - OVERHEAD - INLINE_HEADER;
    }
    if cap.max_recv_wr != 0 {
        granted.max_recv_wr = cap.max_recv_wr.next_power_of_two();
    }
    granted
}
