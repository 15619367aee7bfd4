//! ionic: Pensando of AMD, beneath the library of rdma-core 65.

use crate::abi::types::qp_type::{RC, UD};
use crate::abi::types::{QpCap, Status, WC_GRH, WC_WITH_IMM, Wc, qp_state};
use crate::drivers::table;
use crate::drivers::table::{Asked, Driver, Library, Refusals, Sizes, Verb};
use crate::limits::{MAX_CQE, MAX_QP_WR};

pub(super) const DRIVER: Driver = Driver {
    name: "ionic",
    settings: &[("SOFTRNIC_ERROR_DROPS", "1"), ("SOFTRNIC_MAX_INLINE", "480")],
    vendor_id: 0x1dd8,
    vendor_part_id: 0x1002,
    max_sge: (MOST_ELEMENTS, MOST_ELEMENTS),
    max_reads: 16,
    qp_types: &[RC, UD],
    absent: &[Verb::CreateSrq, Verb::ReregMr, Verb::ResizeCq],
    library: LIBRARY,
    ..table::OWN_DRIVER
};

const LIBRARY: Library = Library {
    sizes,
    cqe: |asked| {
        let asked = u32::try_from(asked).ok();
        asked.filter(|cqe| (1..=MAX_CQE.min(MOST_CQE)).contains(cqe)).ok_or(libc::EINVAL)
    },
    round_cq: |cqe| cqe,
    refusals: Some(Refusals {
        // The library knows the state that the program has asked for.
        sends: |states| if states.known < qp_state::RTS { libc::EINVAL } else { 0 },
        receives: |states| if states.known == qp_state::RESET { libc::EINVAL } else { 0 },
        full: libc::ENOMEM,
        by_opcode: libc::EINVAL,
        by_size: libc::EINVAL,
        receives_by_size: libc::EINVAL,
        takes_long_inline: false,
        inline_answers: libc::EINVAL,
        has_any_inline: true,
        is_lenient: true,
    }),
    fill: Some(fill),
    ..table::OWN_DRIVER.library
};

const MOST_ELEMENTS: u32 = 8;
/// 65535 entries less those that stay free.
const MOST_CQE: u32 = 65435;
const ELEMENT: u32 = 16;
/// Bytes before the data of a request.
const HEADER: u32 = 32;
/// The shortest request, and the least memory of a queue.
const SHORTEST: u32 = 64;
const PAGE: u32 = 4096;

/// A request has a power of two of bytes, and a queue a power of two of requests. One stays free. With more than two elements their lengths take the place of two more.
fn sizes(&Asked { cap, .. }: &Asked) -> Result<Sizes, i32> {
    if cap.max_send_sge == 0 || cap.max_recv_sge == 0 {
        return Err(libc::EINVAL);
    }
    let of_queue = |requests: u32, elements: u32, inline: u32| {
        let (lengths, most) = if elements > 2 { (2, MOST_ELEMENTS) } else { (0, 2) };
        let data = ((elements + lengths) * ELEMENT).max(inline);
        let bytes = (HEADER + data).max(SHORTEST).next_power_of_two();
        let granted = ((bytes - HEADER) / ELEMENT - lengths).min(most);
        let count = (requests.max(1) + 1).next_power_of_two().max(PAGE / bytes);
        (count - 1, granted, bytes - HEADER)
    };
    let send = of_queue(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
    let recv = of_queue(cap.max_recv_wr, cap.max_recv_sge, 0);
    let told = QpCap {
        max_send_wr: send.0,
        max_recv_wr: recv.0,
        max_send_sge: send.1,
        max_recv_sge: recv.1,
        max_inline_data: send.2,
    };
    let real = QpCap {
        max_send_wr: told.max_send_wr.min(MAX_QP_WR),
        max_recv_wr: told.max_recv_wr.min(MAX_QP_WR),
        ..told
    };
    Ok(Sizes { told, queried: told, real })
}

/// The library writes all fields, those of failures in the card's numbers.
fn fill(_: Wc, wc: Wc, is_receive: bool) -> Wc {
    let found = Wc { wr_id: wc.wr_id, status: wc.status, qp_num: wc.qp_num, ..Wc::default() };
    if wc.status != 0 {
        return Wc { vendor_err: vendor_err(wc.status), ..found };
    }
    let (opcode, byte_len) = (wc.opcode, wc.byte_len);
    let found = Wc { opcode, byte_len, ..found };
    if !is_receive {
        return found;
    }
    let has_immediate = wc.wc_flags & WC_WITH_IMM != 0;
    Wc {
        src_qp: wc.src_qp,
        imm_data: if has_immediate { wc.imm_data } else { 0 },
        wc_flags: wc.wc_flags & (WC_WITH_IMM | WC_GRH),
        sl: wc.sl,
        ..found
    }
}

/// A flush is the library's own.
fn vendor_err(status: u32) -> u32 {
    const OTHER: u32 = 13;
    let table = [
        (Status::Flush, 0),
        (Status::LocLen, 1),
        (Status::LocQpOp, 2),
        (Status::LocProt, 3),
        (Status::RemInvReq, 8),
        (Status::RemAccess, 9),
        (Status::RemOp, 10),
        (Status::RetryExceeded, 11),
        (Status::RnrRetryExceeded, 12),
    ];
    table.iter().find(|(known, _)| *known as u32 == status).map_or(OTHER, |(_, code)| *code)
}
