//! bnxt_re: NetXtreme-E of Broadcom, with work requests of a fixed size.

use crate::abi::consts::qp_type::{RC, UD};
use crate::drivers::driver::{Driver, Verb};
use crate::drivers::own;

pub(super) const DRIVER: Driver = Driver {
    name: "bnxt_re",
    settings: &[
        ("SOFTRNIC_GIDS", "rich"),
        ("SOFTRNIC_MAX_INLINE", "96"),
        ("SOFTRNIC_INLINE_EXCESS", "silent"),
        ("SOFTRNIC_THREAD_DOMAINS", "absent"),
    ],
    vendor_id: 0x14e4,
    max_sge: (6, 6),
    max_mr_size: 1 << 39,
    qp_types: &[RC, UD],
    other_type: 0,
    too_much: 0,
    absent: &[Verb::CreateCqEx, Verb::ReregMr],
    ..own::DRIVER
};
