//! erdma: elastic RDMA of Alibaba Cloud, with the protocol RoCE v2. Its devices of the protocol
//! iWARP take no queue pairs that `ibv_modify_qp` connects.

use crate::abi::types::qp_type::{RC, UD};
use crate::abi::types::{QpCap, SendWr, Status, WC_WITH_IMM, Wc, qp_state, wc_opcode, wr_opcode};
use crate::drivers::table;
use crate::drivers::table::{Asked, Driver, Library, MinQueue, Refusals, Sizes, Verb};
use crate::limits::MAX_CQE;

/// Elements of a send and of a receive, inline bytes.
const SEND_SGE: u32 = 6;
const RECV_SGE: u32 = 1;
const INLINE: u32 = table::number(MAX_INLINE);
const MAX_INLINE: &str = "96";

pub(super) const DRIVER: Driver = Driver {
    name: "erdma",
    settings: &[
        ("SOFTRNIC_MAX_QP_WR", "8192"),
        ("SOFTRNIC_MAX_INLINE", MAX_INLINE),
        ("SOFTRNIC_THREAD_DOMAINS", "absent"),
    ],
    vendor_id: 0x1ded,
    vendor_part_id: 0x107f,
    max_sge: (SEND_SGE, RECV_SGE),
    min_queue: MinQueue { send: 1, recv: 1 },
    // For UD there are no address handles.
    qp_types: &[RC, UD],
    absent: &[
        Verb::CreateAh,
        Verb::CreateCqEx,
        Verb::CreateQpEx,
        Verb::CreateSrq,
        Verb::ReregMr,
        Verb::ResizeCq,
    ],
    library: LIBRARY,
    ..table::OWN_DRIVER
};

const LIBRARY: Library = Library {
    sizes,
    cqe: |asked| {
        let asked = u32::try_from(asked.max(1)).ok();
        asked.filter(|cqe| cqe.next_power_of_two() <= MAX_CQE).ok_or(libc::EIO)
    },
    round_cq: |cqe| cqe.max(64).next_power_of_two(),
    // All are negative.
    refusals: Some(Refusals {
        // The library knows the state that the program has asked for, and looks for one alone.
        sends: |states| if states.known == qp_state::ERR { -libc::EIO } else { 0 },
        receives: |states| if states.known == qp_state::ERR { -libc::EIO } else { 0 },
        full: -libc::ENOMEM,
        by_opcode: -libc::EINVAL,
        by_size: -libc::EINVAL,
        receives_by_size: -libc::EINVAL,
        takes_long_inline: false,
        inline_answers: 0,
        has_any_inline: false,
        is_lenient: true,
    }),
    blocks,
    has_inline_answers: false,
    fill: Some(fill),
    // The library's counters continue after a reset.
    reset_frees: false,
    ..table::OWN_DRIVER.library
};

/// A send is 1 to 4 blocks of so many bytes.
const BLOCK: u64 = 32;
const MOST_BLOCKS: u32 = 4;

/// The queues are powers of two, and elements and inline data always as many as there can be; the
/// program learns of that when it asks.
fn sizes(&Asked { cap, .. }: &Asked) -> Result<Sizes, i32> {
    let real = QpCap {
        max_send_wr: (cap.max_send_wr * MOST_BLOCKS).next_power_of_two(),
        max_recv_wr: cap.max_recv_wr.next_power_of_two(),
        max_send_sge: SEND_SGE,
        max_recv_sge: RECV_SGE,
        max_inline_data: INLINE,
    };
    Ok(Sizes { told: cap, queried: real, real })
}

/// Blocks that a send takes, with so many elements, and bytes that are inline.
fn blocks(wr: &SendWr, elements: usize, inline: u64) -> u64 {
    const HEADER: u64 = 16;
    const ELEMENT: u64 = 16;
    let data = inline + elements as u64 * ELEMENT;
    let bytes = match wr.opcode {
        wr_opcode::SEND | wr_opcode::SEND_WITH_IMM => HEADER + data,
        wr_opcode::RDMA_READ => 48,
        wr_opcode::ATOMIC_CMP_SWAP | wr_opcode::ATOMIC_FETCH_ADD => 64,
        _ => BLOCK + data,
    };
    bytes.div_ceil(BLOCK)
}

/// The library has names of its own for failures, and not for all. It leaves out who has sent a
/// message, and with what address.
fn fill(before: Wc, wc: Wc, is_receive: bool) -> Wc {
    const LOC_ACCESS: u32 = 8;
    const REM_ACCESS: u32 = Status::RemAccess as u32;
    const OTHER: (u32, u32) = (Status::General as u32, 0);
    let known = |status: Status| wc.status == status as u32;
    let (status, vendor_err) = if known(Status::Success) || known(Status::Flush) {
        (wc.status, 0)
    } else if is_receive {
        if known(Status::LocLen) {
            (REM_ACCESS, 3)
        } else if known(Status::LocProt) {
            (REM_ACCESS, 2)
        } else {
            OTHER
        }
    } else if known(Status::LocQpOp) {
        (wc.status, 0x20)
    } else if known(Status::LocProt) {
        (LOC_ACCESS, 0x30)
    } else if known(Status::RemAccess) {
        (REM_ACCESS, 2)
    } else if known(Status::RetryExceeded) || known(Status::RnrRetryExceeded) {
        (Status::RetryExceeded as u32, 0)
    } else {
        OTHER
    };
    let is_good_receive = is_receive && status == 0;
    let has_immediate = is_good_receive && wc.wc_flags & WC_WITH_IMM != 0;
    Wc {
        wr_id: wc.wr_id,
        status,
        opcode: if is_receive && !is_good_receive { wc_opcode::RECV } else { wc.opcode },
        vendor_err,
        byte_len: wc.byte_len,
        imm_data: if has_immediate { wc.imm_data } else { before.imm_data },
        qp_num: wc.qp_num,
        wc_flags: if has_immediate { WC_WITH_IMM } else { 0 },
        ..before
    }
}
