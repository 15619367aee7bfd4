//! Both devices as one.

use crate::common::bench::Bench;
use crate::common::process::pair;
use crate::data::{carries, packets_sent};
use crate::guest::{Case, is_worker, network};
use lab::error::Result;

/// Where sysfs shows two ports of one card, one device of two rails is made of them, and both carry
/// data.
pub(crate) fn one_device_of_two_rails(case: &Case) -> Result<()> {
    const DEVICES: [&str; 2] = ["rxe0", "rxe1"];
    if !is_worker() {
        network("card");
    }
    let before = DEVICES.map(packets_sent);
    let setting =
        case.setting().env("NCCL_IB_MERGE_NICS", "1").env("NCCL_IB_QPS_PER_CONNECTION", "2");
    pair(&setting.env("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), |worker| {
        let transport = case.transport()?;
        assert_eq!(transport.devices()?, 1, "two devices are one");
        assert_eq!(transport.properties(0)?.name, "rxe0+rxe1");
        let bench = Bench::open(worker, transport, 1 << 20)?;
        carries(worker, &bench)
    })?;
    for (device, before) in DEVICES.into_iter().zip(before) {
        let sent = packets_sent(device) - before;
        assert!(sent > 100, "{device} has sent {sent} packets only");
    }
    Ok(())
}
