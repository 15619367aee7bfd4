//! Devices in the order of NCCL's own: an index in a log or in a topology file is the same device
//! on both sides of a comparison.

use crate::common::prelude::*;
use lab::nccl::debug_log;

/// Two PCI functions of this machine, the one with the higher address first.
fn pci_functions() -> Result<[String; 2], Missing> {
    let missing = || Missing::new("/sys/devices has fewer than two PCI functions");
    let bus = std::fs::read_dir("/sys/devices/pci0000:00").map_err(|_| missing())?;
    let paths = bus.flatten().map(|entry| entry.path()).filter(|path| path.join("class").exists());
    let mut paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    paths.sort();
    match (paths.pop(), paths.pop()) {
        (Some(last), Some(before)) => Ok([last, before]),
        _ => Err(missing()),
    }
}

fn names(source: &Source) -> Result<Vec<String>> {
    let transport = Transport::open(source)?;
    (0..transport.devices()?).map(|device| Ok(transport.properties(device)?.name)).collect()
}

/// Where the first device has the higher PCI address: with `release` the devices are in the order
/// of the built-in transport's.
fn is_that_of(release: &str, env: &[(&str, &str)], expected: [&str; 2]) -> Result<()> {
    let nccl = require!(stock_nccl(release));
    let plugin = require!(plugin());
    let [first, second] = require!(pci_functions());
    let places = [format!("softrnic0={first}"), format!("softrnic1={second}")];
    let arguments = ["--devices", "2", "--pci", &places[0], "--pci", &places[1]];
    let adapt = |setting: Setting| {
        let setting = setting.env("NCCL_IB_MERGE_NICS", "0");
        env.iter().fold(setting, |setting, (name, value)| setting.env(name, value))
    };
    faithful::run(&arguments, adapt, |worker| {
        debug_log::use_stock(&nccl)?;
        let ours = names(&Source::plugin(&plugin))?;
        assert_eq!(ours, expected);
        assert_eq!(names(&Source::stock(&nccl))?, ours);
        worker.barrier()
    })
}

cases! { Result<()>;
    devices_are_in_the_order_of_libibverbs_with_nccl_2_21 =>
        is_that_of("2.21.5", &[], ["softrnic0", "softrnic1"]);
    devices_are_in_the_order_of_their_pci_addresses_with_nccl_2_32 =>
        is_that_of("2.32.3", &[], ["softrnic1", "softrnic0"]);
    devices_are_in_the_order_of_libibverbs_if_nccl_2_32_is_asked_for_that =>
        is_that_of("2.32.3", &[("NCCL_IB_DEVICE_PCI_ORDER", "0")], ["softrnic0", "softrnic1"]);
}
