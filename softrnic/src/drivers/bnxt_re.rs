//! bnxt_re: NetXtreme-E of Broadcom, with work requests of a fixed size, beneath the library of
//! rdma-core 44.

use crate::abi::types::qp_type::{RC, UD};
use crate::abi::types::{QpCap, Status, WC_WITH_IMM, Wc, qp_state, wc_opcode};
use crate::drivers::table;
use crate::drivers::table::{Asked, Driver, Library, Refusals, Sizes, States, Verb};

/// Inline bytes of a send.
const INLINE: u32 = table::number(MAX_INLINE);
const MAX_INLINE: &str = "96";
/// Places of a send queue that stay free, besides one of each queue.
const RESERVED: u32 = 128;

pub(super) const DRIVER: Driver = Driver {
    name: "bnxt_re",
    settings: &[
        ("SOFTRNIC_GIDS", "rich"),
        // 16384 less the places that stay free.
        ("SOFTRNIC_MAX_QP_WR", "16255"),
        ("SOFTRNIC_MAX_INLINE", MAX_INLINE),
        ("SOFTRNIC_INLINE_EXCESS", "silent"),
        ("SOFTRNIC_THREAD_DOMAINS", "absent"),
    ],
    vendor_id: 0x14e4,
    vendor_part_id: 0x1750,
    max_sge: (6, 6),
    max_mr_size: 1 << 39,
    qp_types: &[RC, UD],
    too_much: 0,
    cuts_queues: true,
    absent: &[Verb::CreateCqEx, Verb::CreateQpEx, Verb::ReregMr, Verb::ResizeCq],
    library: LIBRARY,
    ..table::OWN_DRIVER
};

const LIBRARY: Library = Library {
    sizes,
    round_cq: |cqe| (cqe + 1).next_power_of_two(),
    refusals: Some(Refusals {
        sends: |states| {
            let may = matches!(known(states), qp_state::RTS | qp_state::SQD);
            if may { 0 } else { libc::EINVAL }
        },
        receives: |states| {
            let may = !matches!(known(states), qp_state::RESET | qp_state::ERR);
            if may { 0 } else { libc::EINVAL }
        },
        full: libc::ENOMEM,
        by_opcode: libc::EINVAL,
        by_size: libc::ENOMEM,
        receives_by_size: libc::ENOMEM,
        takes_long_inline: true,
        inline_answers: 0,
        has_any_inline: false,
        is_lenient: true,
    }),
    fill: Some(fill),
    ..table::OWN_DRIVER.library
};

/// The library knows the state that the program has asked for, and learns of failures from
/// completions.
fn known(states: States) -> u32 {
    if states.is_found_failed { qp_state::ERR } else { states.known }
}

/// Queues are powers of two, and one place of each stays free. Who asks for inline data gets the
/// greatest size.
fn sizes(&Asked { cap, .. }: &Asked) -> Result<Sizes, i32> {
    let max_inline_data = if cap.max_inline_data == 0 { 0 } else { INLINE };
    let told = QpCap { max_inline_data, ..cap };
    let sends = (cap.max_send_wr + RESERVED + 1).next_power_of_two();
    let receives = (cap.max_recv_wr + 1).next_power_of_two().max(2);
    let queried = QpCap { max_send_wr: sends, max_recv_wr: receives, ..told };
    let real = QpCap { max_send_wr: sends - RESERVED - 1, max_recv_wr: receives - 1, ..told };
    Ok(Sizes { told, queried, real })
}

/// The library writes neither the sender of a message, nor the vendor's error code.
fn fill(before: Wc, wc: Wc, is_receive: bool) -> Wc {
    let is_good = wc.status == Status::Success as u32;
    let has_answer = !matches!(wc.opcode, wc_opcode::SEND | wc_opcode::RDMA_WRITE);
    let has_immediate = is_receive && is_good && wc.wc_flags & WC_WITH_IMM != 0;
    Wc {
        wr_id: wc.wr_id,
        status: wc.status,
        opcode: if is_receive && !is_good { wc_opcode::RECV } else { wc.opcode },
        byte_len: match (is_good, is_receive || has_answer) {
            (true, true) => wc.byte_len,
            (true, false) => before.byte_len,
            (false, _) => 0,
        },
        imm_data: if has_immediate { wc.imm_data } else { before.imm_data },
        qp_num: wc.qp_num,
        wc_flags: if has_immediate { WC_WITH_IMM } else { 0 },
        ..before
    }
}
