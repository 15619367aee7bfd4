//! irdma: E810 of Intel (the driver's generation 2), with RoCE v2.

use crate::abi::consts::qp_type::{RC, UD};
use crate::drivers::driver::{Driver, Verb};
use crate::drivers::own;

pub(super) const DRIVER: Driver = Driver {
    name: "irdma",
    settings: &[
        ("SOFTRNIC_SPEED", "100"),
        ("SOFTRNIC_MAX_QP_WR", "4063"),
        ("SOFTRNIC_MAX_INLINE", "101"),
        ("SOFTRNIC_THREAD_DOMAINS", "absent"),
    ],
    vendor_id: 0x8086,
    max_sge: (13, 13),
    max_mr_size: 1 << 45,
    qp_types: &[RC, UD],
    has_atomics: false,
    absent: &[Verb::CreateQpEx, Verb::CreateSrq],
    ..own::DRIVER
};
