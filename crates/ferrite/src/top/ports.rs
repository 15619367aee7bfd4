//! Counters of ports that the kernel shows in /sys/class/infiniband, whatever the driver calls them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where the kernel shows RDMA devices.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// A port.
#[derive(Debug, Clone, Default)]
pub(crate) struct Port {
    /// `ACTIVE`, `DOWN` and others, as the kernel says.
    pub(crate) state: String,
    /// By the kernel's name; those of `counters` and of `hw_counters`.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// Counters of a port that tell of packets that were lost or sent again.
const RETRIES: [&str; 6] = [
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "roce_adp_retrans",
];
/// Congestion notification packets that a port has handled.
const CONGESTION: [&str; 2] = ["rp_cnp_handled", "rx_cnp_handled"];

/// What happened at a port between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PortRates {
    /// Bytes a second that it has sent. The kernel counts words of 4 bytes.
    pub(crate) sent: f64,
    /// Bytes a second that it has received.
    pub(crate) received: f64,
    /// Packets a second that were lost or sent again.
    pub(crate) retries: f64,
    /// Congestion notifications a second.
    pub(crate) congestion: f64,
    /// Times that there was data and no credit to send it, a second.
    pub(crate) waits: f64,
}

/// All ports, by device and port number, below `class`, which is [`CLASS`] but in tests.
pub(crate) fn read(class: &Path) -> BTreeMap<(String, u32), Port> {
    let mut ports = BTreeMap::new();
    for device in names(class) {
        for number in names(&class.join(&device).join("ports")) {
            let folder = class.join(&device).join("ports").join(&number);
            let state = fs::read_to_string(folder.join("state")).unwrap_or_default();
            let state = state.trim().rsplit(' ').next().unwrap_or_default().to_owned();
            let counters = ["counters", "hw_counters"].map(|kind| folder.join(kind)).into_iter().flat_map(|folder| {
                let read = |name: String| {
                    let value = fs::read_to_string(folder.join(&name)).ok()?.trim().parse().ok()?;
                    Some((name, value))
                };
                names(&folder).into_iter().filter_map(read).collect::<Vec<_>>()
            });
            let port = Port { state, counters: counters.collect() };
            if let Ok(number) = number.parse() {
                ports.insert((device.clone(), number), port);
            }
        }
    }
    ports
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The rates of a port between two moments that are so many seconds apart.
pub(crate) fn rates(before: &Port, now: &Port, seconds: f64) -> PortRates {
    let grown = |name: &str| {
        let of = |port: &Port| port.counters.get(name).copied().unwrap_or(0);
        of(now).saturating_sub(of(before)) as f64 / seconds.max(1e-3)
    };
    let sum = |names: &[&str]| names.iter().map(|name| grown(name)).sum();
    PortRates {
        sent: 4.0 * grown("port_xmit_data"),
        received: 4.0 * grown("port_rcv_data"),
        retries: sum(&RETRIES),
        congestion: sum(&CONGESTION),
        waits: grown("port_xmit_wait"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Scratch;

    #[test]
    fn all_counters_of_a_port_are_read_and_words_become_bytes() {
        let class = Scratch::new();
        let port = class.path().join("mlx5_0/ports/1");
        let write = |name: &str, text: &str| {
            let path = port.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let read = |sent: &str| {
            write("state", "4: ACTIVE\n");
            write("counters/port_xmit_data", sent);
            write("hw_counters/out_of_sequence", "12\n");
            write("hw_counters/odd", "none\n");
            read(class.path()).remove(&("mlx5_0".into(), 1)).expect("the port")
        };
        let (before, now) = (read("1000\n"), read("3000\n"));
        assert_eq!((now.state.as_str(), now.counters.len()), ("ACTIVE", 2));
        let expected = PortRates { sent: 4000.0, ..PortRates::default() };
        assert_eq!(rates(&before, &now, 2.0), expected);
        assert_eq!(rates(&Port::default(), &now, 2.0).retries, 6.0);
    }
}
