//! mana: Azure's adapter of Microsoft.

use crate::abi::consts::qp_type::RC;
use crate::drivers::driver::{Driver, Verb};
use crate::drivers::own;

pub(super) const DRIVER: Driver = Driver {
    name: "mana",
    settings: &[("SOFTRNIC_SPEED", "100"), ("SOFTRNIC_THREAD_DOMAINS", "absent")],
    vendor_id: 0,
    max_mr_size: u64::MAX,
    qp_types: &[RC],
    takes_inline: false,
    has_atomics: false,
    absent: &[
        Verb::CreateAh,
        Verb::CreateCqEx,
        Verb::CreateQpEx,
        Verb::CreateSrq,
        Verb::QueryQp,
        Verb::ReregMr,
        Verb::ResizeCq,
    ],
    ..own::DRIVER
};
