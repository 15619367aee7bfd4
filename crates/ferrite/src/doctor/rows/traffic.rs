//! The class of RoCE traffic.

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use lab::system::root::Root;

pub(crate) const ROWS: &[Row] = &[Row {
    name: "traffic-class",
    what: "RoCE: the traffic class that packets get (NCCL_IB_TC), and whether congestion notification (ECN) is on for its \
           priority, where the driver shows it. Whether the class is lossless (PFC) is not seen from here",
    why: "RoCE loses packets in a congested class that is not lossless, and each loss costs a time-out",
    cure: "NCCL_IB_TC=106 where the fabric's RoCE class is DSCP 26; `mlnx_qos -i DEV` shows trust and PFC; \
           echo 1 > /sys/class/net/DEV/ecn/roce_np/enable/PRIORITY, and roce_rp as well",
    look: traffic_class,
}];

fn traffic_class(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let ethernet: Vec<_> = facts.rails.iter().filter(|rail| !rail.infiniband).collect();
    if ethernet.is_empty() {
        return vec![Finding::ok("", "no RoCE port is used")];
    }
    let class = facts.traffic_class;
    let (dscp, priority) = (class >> 2, class >> 5);
    let said = format!("traffic class {class}, DSCP {dscp}, priority {priority} if DSCP is trusted");
    let of_rail = |device: &str, port: u8, name: String| {
        let off = ecn_off(&machine.root, device, port, priority)?;
        let text = match off.is_empty() {
            true => return Some(Finding::ok(name, format!("{said}; ECN is on"))),
            false => format!("{said}; ECN is off ({})", off.join(", ")),
        };
        Some(Finding::warn(name, text))
    };
    let found = ethernet.iter().map(|rail| {
        let unknown = || Finding::unknown(rail.name(), format!("{said}; the driver does not show ECN"));
        of_rail(&rail.device, rail.port, rail.name()).unwrap_or_else(unknown)
    });
    found.collect()
}

/// The switches of ECN that are off for a priority. `None`: the driver shows none.
fn ecn_off(root: &Root, device: &str, port: u8, priority: u8) -> Option<Vec<String>> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs");
    let interface = root.names(&folder).iter().find_map(|index| root.text(format!("{folder}/{index}")))?;
    let switch = |side: &str| {
        Some((side.to_owned(), root.number(format!("/sys/class/net/{interface}/ecn/{side}/enable/{priority}"))?))
    };
    let switches: Vec<(String, i64)> = ["roce_np", "roce_rp"].into_iter().filter_map(switch).collect();
    let off = switches.iter().filter(|(_, value)| *value == 0).map(|(side, _)| side.clone()).collect();
    (!switches.is_empty()).then_some(off)
}
