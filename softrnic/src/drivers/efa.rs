//! efa: Elastic Fabric Adapter of Amazon. It has no reliable connections but a transport of its own (SRD), which is not modelled.

use crate::abi::consts::qp_type::UD;
use crate::drivers::driver::{Driver, Verb};
use crate::drivers::own;

pub(super) const DRIVER: Driver = Driver {
    name: "efa",
    settings: &[("SOFTRNIC_LINK", "unspecified")],
    vendor_id: 0x1d0f,
    vendor_part_id: 0xefa0,
    qp_types: &[UD],
    has_atomics: false,
    absent: &[Verb::CreateSrq, Verb::ReregMr, Verb::ResizeCq],
    ..own::DRIVER
};
