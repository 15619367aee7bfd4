//! The state machine of a queue pair: which transition needs and allows which attributes.

use crate::abi::consts::{access, qp_attr as mask, qp_state as state, qp_type};
use crate::abi::types::QpAttr;
use crate::network::link::MTU_4096;

/// Attribute bits that a transition needs, and those it allows besides.
pub(crate) struct AttrMask {
    pub(crate) needs: i32,
    pub(crate) allows: i32,
}

/// The attributes for `from` -> `to` of an `ibv_qp_type`, if there is such a transition. UC has neither READs nor retries. There is no
/// path migration.
pub(crate) fn attributes(from: u32, to: u32, qp_type: i32) -> Option<AttrMask> {
    if qp_type == qp_type::UD {
        return of_datagrams(from, to);
    }
    let is_rc = qp_type == qp_type::RC;
    let only_rc = |bits: i32| if is_rc { bits } else { 0 };
    let basics = mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    let timing = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
    // To and from the states in which something may be sent.
    let sending = mask::CUR_STATE | mask::ACCESS_FLAGS | only_rc(mask::MIN_RNR_TIMER);
    let (needs, allows) = match (from, to) {
        (_, state::RESET | state::ERR) => (0, 0),
        (state::RESET, state::INIT) => (basics, 0),
        (state::INIT, state::INIT) => (0, basics),
        (state::INIT, state::RTR) => (
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | only_rc(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
            mask::PKEY_INDEX | mask::ACCESS_FLAGS,
        ),
        (state::RTR, state::RTS) => (mask::SQ_PSN | only_rc(timing), sending),
        (state::RTS | state::SQD, state::RTS) => (0, sending),
        (state::SQE, state::RTS) if !is_rc => (0, mask::CUR_STATE | mask::ACCESS_FLAGS),
        (state::RTS, state::SQD) => (0, mask::EN_SQD_ASYNC_NOTIFY),
        (state::SQD, state::SQD) => (
            0,
            mask::AV
                | mask::PKEY_INDEX
                | mask::ACCESS_FLAGS
                | only_rc(timing | mask::PORT | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
        ),
        _ => return None,
    };
    Some(AttrMask { needs, allows })
}

/// As [`attributes`], of UD, which is not connected: each datagram brings its address.
fn of_datagrams(from: u32, to: u32) -> Option<AttrMask> {
    let basics = mask::PKEY_INDEX | mask::PORT | mask::QKEY;
    let (needs, allows) = match (from, to) {
        (_, state::RESET | state::ERR) => (0, 0),
        (state::RESET, state::INIT) => (basics, 0),
        (state::INIT, state::INIT) => (0, basics),
        (state::INIT, state::RTR) => (0, mask::PKEY_INDEX | mask::QKEY),
        (state::RTR, state::RTS) => (mask::SQ_PSN, mask::CUR_STATE | mask::QKEY),
        (state::RTS | state::SQD | state::SQE, state::RTS) => (0, mask::CUR_STATE | mask::QKEY),
        (state::RTS, state::SQD) => (0, mask::EN_SQD_ASYNC_NOTIFY),
        (state::SQD, state::SQD) => (0, mask::PKEY_INDEX | mask::QKEY),
        _ => return None,
    };
    Some(AttrMask { needs, allows })
}

/// EINVAL if a value is out of range: of `ports` ports, and `max_reads` outstanding READs.
pub(crate) fn check_values(attr: &QpAttr, given: i32, ports: u32, max_reads: u8) -> Result<(), i32> {
    let has = |bit: i32| given & bit != 0;
    let flags = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let is_bad = has(mask::PKEY_INDEX) && attr.pkey_index != 0
        || has(mask::PORT) && !(1..=ports).contains(&u32::from(attr.port_num))
        || has(mask::ACCESS_FLAGS) && attr.qp_access_flags & !(flags | access::OPTIONAL) != 0
        || has(mask::PATH_MTU) && !(1..=MTU_4096).contains(&attr.path_mtu)
        || has(mask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > max_reads
        || has(mask::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > max_reads
        || has(mask::MIN_RNR_TIMER) && attr.min_rnr_timer > 31
        || has(mask::TIMEOUT) && attr.timeout > 31
        || has(mask::RETRY_CNT) && attr.retry_cnt > 7
        || has(mask::RNR_RETRY) && attr.rnr_retry > 7
        || has(mask::DEST_QPN) && attr.dest_qp_num >= 1 << 24;
    if is_bad { Err(libc::EINVAL) } else { Ok(()) }
}

/// Takes over the attributes that are `given`.
pub(crate) fn remember(known: &mut QpAttr, attr: &QpAttr, given: i32) {
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)+) => { $(if given & mask::$bit != 0 { $(known.$field = attr.$field;)+ })+ };
    }
    take! {
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah_attr;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        SQ_PSN: sq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        DEST_QPN: dest_qp_num;
    }
    known.rq_psn &= 0xff_ffff;
    known.sq_psn &= 0xff_ffff;
}
