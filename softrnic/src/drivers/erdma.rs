//! erdma: elastic RDMA of Alibaba Cloud, with the protocol RoCE v2. Its devices of the protocol iWARP take no queue pairs that
//! `ibv_modify_qp` connects.

use crate::abi::consts::qp_type::{RC, UD};
use crate::drivers::driver::{Driver, MinQueue, Verb};
use crate::drivers::own;

pub(super) const DRIVER: Driver = Driver {
    name: "erdma",
    settings: &[("SOFTRNIC_MAX_QP_WR", "8192"), ("SOFTRNIC_MAX_INLINE", "96"), ("SOFTRNIC_THREAD_DOMAINS", "absent")],
    vendor_id: 0x1ded,
    vendor_part_id: 0x107f,
    max_sge: (6, 1),
    min_queue: MinQueue { send: 1, recv: 1 },
    // For UD there are no address handles.
    qp_types: &[RC, UD],
    absent: &[Verb::CreateAh, Verb::CreateCqEx, Verb::CreateQpEx, Verb::CreateSrq, Verb::ReregMr, Verb::ResizeCq],
    round_cq: |cqe| cqe.max(64).next_power_of_two(),
    ..own::DRIVER
};
