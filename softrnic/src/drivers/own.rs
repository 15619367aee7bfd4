//! softrnic's own: everything that it can do.

use crate::abi::consts::qp_type::{RC, UC, UD};
use crate::drivers::driver::{Driver, MinQueue};
use crate::limits::{MAX_READS, MAX_SGE};

pub(super) const DRIVER: Driver = Driver {
    name: "softrnic",
    settings: &[],
    infiniband_settings: &[],
    fw_ver: env!("CARGO_PKG_VERSION"),
    // In no vendor's range.
    vendor_id: 0x00f0_0000,
    vendor_part_id: 0,
    max_sge: (MAX_SGE, MAX_SGE),
    max_reads: MAX_READS,
    max_mr_size: u64::MAX >> 1,
    page_size_cap: 0xffff_f000,
    max_pd: 1 << 20,
    max_ah: 1 << 20,
    local_ca_ack_delay: 0,
    min_queue: MinQueue { send: 0, recv: 0 },
    qp_types: &[RC, UC, UD],
    other_type: libc::EOPNOTSUPP,
    too_much: libc::EINVAL,
    takes_inline: true,
    has_atomics: true,
    absent: &[],
    round: |cap| cap,
    // Like the common hardware: a power of two less one.
    round_cq: |cqe| (cqe + 1).next_power_of_two() - 1,
};
