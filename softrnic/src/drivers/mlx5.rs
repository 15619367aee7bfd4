//! mlx5: ConnectX of NVIDIA, generation by generation. Most of its limits are larger than
//! softrnic's own, which stand for them.

use crate::abi::types::{WC_GRH, WC_WITH_IMM, Wc, qp_state, wc_opcode, wr_opcode};
use crate::drivers::table;
use crate::drivers::table::{Asked, Driver, Library, Refusals, Sizes};

/// What does not depend on the generation.
const COMMON: Driver = Driver {
    vendor_id: 0x02c9,
    max_mr_size: u64::MAX,
    max_ah: i32::MAX,
    cuts_rnr_timer: true,
    max_sge: (30, 30),
    library: Library {
        sizes,
        refusals: Some(Refusals {
            // The library knows how many elements a request may have; until then there may be none.
            sends: |states| if states.reached >= qp_state::RTS { 0 } else { libc::ENOMEM },
            receives: |states| if states.reached >= qp_state::INIT { 0 } else { libc::EINVAL },
            full: libc::ENOMEM,
            by_opcode: libc::EINVAL,
            by_size: libc::ENOMEM,
            receives_by_size: libc::EINVAL,
            takes_long_inline: false,
            inline_answers: 0,
            has_any_inline: false,
            is_lenient: true,
        }),
        fill: Some(fill),
        flags_sent_immediates: true,
        ece_vendor: 0x15b3,
        ..table::OWN_DRIVER.library
    },
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

/// Bytes of a control segment, with which each work request begins.
const CONTROL: u32 = 16;
/// Those of what follows it: an address in remote memory, the operands of an atomic, what binds
/// memory windows.
const REMOTE: u32 = 16;
const OPERANDS: u32 = 16;
const WINDOW: u32 = 48 + 64 + 64;
/// A send is so many bytes, or a multiple. So is the least receive queue.
const BLOCK: u32 = 64;
const INLINE_HEADER: u32 = 4;
const ELEMENT: u32 = 16;
/// The longest send and the longest receive, in bytes; the most blocks of a send queue and receives
/// of a receive queue.
const MOST_SEND: u32 = 1024;
const MOST_RECEIVE: u32 = 512;
const MOST_BLOCKS: u32 = 32768;
const MOST_RECEIVES: u32 = 32768;

/// Bytes that the longest of these operations has before its data.
fn overhead(operations: Option<u64>) -> u32 {
    let Some(operations) = operations else { return CONTROL + WINDOW };
    let has = |list: &[u32]| list.iter().any(|opcode| operations & 1 << opcode != 0);
    if has(&[wr_opcode::ATOMIC_CMP_SWAP, wr_opcode::ATOMIC_FETCH_ADD]) {
        CONTROL + REMOTE + OPERANDS
    } else if has(&[wr_opcode::RDMA_WRITE, wr_opcode::RDMA_WRITE_WITH_IMM, wr_opcode::RDMA_READ]) {
        CONTROL + REMOTE
    } else {
        CONTROL
    }
}

/// The send queue is a power of two of bytes, the receive queue of work requests, whose elements
/// are one as well. Inline data fills up the last block of a send.
fn sizes(&Asked { cap, operations }: &Asked) -> Result<Sizes, i32> {
    let mut told = cap;
    if cap.max_send_wr != 0 {
        let overhead = overhead(operations);
        let inline = match cap.max_inline_data {
            0 => 0,
            bytes => bytes.checked_add(INLINE_HEADER).ok_or(libc::EINVAL)?,
        };
        let elements = cap.max_send_sge.checked_mul(ELEMENT).ok_or(libc::EINVAL)?;
        let data = elements.max(inline.checked_next_multiple_of(ELEMENT).ok_or(libc::EINVAL)?);
        if data > MOST_SEND - overhead || cap.max_send_wr > MOST_BLOCKS {
            return Err(libc::EINVAL);
        }
        let bytes = (overhead + data).next_multiple_of(BLOCK);
        let queue = (cap.max_send_wr * bytes).next_power_of_two();
        if queue / BLOCK > MOST_BLOCKS {
            return Err(libc::EINVAL);
        }
        told.max_send_wr = queue / bytes;
        // Without elements there is no room for the header: then it is 4 GiB less 4.
        told.max_inline_data = (bytes - overhead).wrapping_sub(INLINE_HEADER);
    }
    if cap.max_recv_wr == 0 {
        told.max_recv_sge = 0;
    } else {
        let elements = cap.max_recv_sge.max(1);
        if elements > MOST_RECEIVE / ELEMENT || cap.max_recv_wr > MOST_RECEIVES {
            return Err(libc::EINVAL);
        }
        told.max_recv_sge = elements.next_power_of_two();
        let least = BLOCK / (told.max_recv_sge * ELEMENT);
        told.max_recv_wr = cap.max_recv_wr.next_power_of_two().max(least);
    }
    let (mut queried, mut real) = (told, told);
    if cap.max_send_wr == 0 {
        // What was asked for is written back.
        (queried.max_send_sge, queried.max_inline_data) = (0, 0);
        real = queried;
    }
    if told.max_inline_data > MOST_SEND {
        real.max_inline_data = 0;
    }
    Ok(Sizes { told, queried, real })
}

/// The library writes what a completion of its kind has, and leaves the rest as it was. Immediate
/// data that was received is where datagrams have the index of a P_Key.
fn fill(before: Wc, wc: Wc, is_receive: bool) -> Wc {
    let Wc { wr_id, status, qp_num, .. } = wc;
    let common = Wc { wr_id, status, qp_num, wc_flags: 0, ..before };
    if status != 0 {
        return Wc { vendor_err: wc.vendor_err, ..common };
    }
    let (opcode, wc_flags) = (wc.opcode, wc.wc_flags & (WC_WITH_IMM | WC_GRH));
    let common = Wc { opcode, wc_flags, ..common };
    if !is_receive {
        let returns = opcode >= wc_opcode::RDMA_READ;
        return Wc { byte_len: if returns { wc.byte_len } else { before.byte_len }, ..common };
    }
    let has_immediate = wc_flags & WC_WITH_IMM != 0;
    Wc {
        byte_len: wc.byte_len,
        imm_data: if has_immediate { wc.imm_data } else { before.imm_data },
        pkey_index: if has_immediate { u32::from_be(wc.imm_data) as u16 } else { 0 },
        src_qp: wc.src_qp,
        slid: wc.slid,
        sl: wc.sl,
        dlid_path_bits: wc.dlid_path_bits,
        ..common
    }
}
