//! The network interface over which connections are set up.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use nccl_net::inspect::config::Config;
use nccl_net::inspect::iface::{self, Interface};

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "control",
        what: "the interface that the plugin takes for connection set-up (TCP); warn if no other host can reach it, or if an entry of NCCL_SOCKET_IFNAME names none",
        why: "peers connect to this address; loopback, docker's bridge and link-local addresses lead nowhere from another host",
        cure: "NCCL_SOCKET_IFNAME=DEV, an interface that all hosts of the job reach; NCCL_SOCKET_FAMILY for the address family",
        look: control,
    },
    Row {
        name: "control-port",
        what: "a TCP port that the system chooses on that interface can be reached from this host itself",
        why: "each process of a job listens at one such port; a firewall that drops it lets every connection time out",
        cure: "open the ports of net.ipv4.ip_local_port_range between the hosts of the job (iptables, nft, network policies)",
        look: control_port,
    },
];

/// A port of this host answers at once, or not at all.
const TIME_LIMIT: Duration = Duration::from_secs(3);

/// The settings of the job that choose the interface.
fn config(machine: &Machine) -> Result<Config, String> {
    let lookup = |name: &str| match name {
        "NCCL_SOCKET_IFNAME" | "NCCL_SOCKET_FAMILY" | "NCCL_COMM_ID" => machine.env.get(name).cloned(),
        _ => None,
    };
    Config::parse(lookup).map_err(|error| error.text())
}

/// The interface that the plugin would take, with the settings of the job.
///
/// # Errors
/// The settings are out of range, or no interface fits.
pub(crate) fn chosen(machine: &Machine) -> Result<Interface, String> {
    iface::choose(&config(machine)?.interfaces).map_err(|error| error.text())
}

fn control(machine: &Machine) -> Vec<Finding> {
    let Interface { name, address } = match chosen(machine) {
        Ok(interface) => interface,
        Err(why) => return vec![Finding::fail("", why)],
    };
    let state = machine.root.text(format!("/sys/class/net/{name}/operstate")).filter(|state| state != "unknown");
    let speed = machine.root.number(format!("/sys/class/net/{name}/speed")).filter(|mbps| *mbps > 0);
    let mut text = format!("{} ({})", name, address.ip());
    text += &state.map_or(String::new(), |state| format!(", {state}"));
    text += &speed.map_or(String::new(), |mbps| format!(", {} Gb/s", mbps as f64 / 1000.0));
    let mut found = match unreachable_reason(&name, address) {
        None => vec![Finding::ok("", text)],
        Some(why) => vec![Finding::warn("", format!("{text}: {why}"))],
    };
    let filter = config(machine).map(|config| config.interfaces).unwrap_or_default();
    let without = filter.without_effect();
    found.extend(without.into_iter().map(|entry| {
        let text = format!("NCCL_SOCKET_IFNAME={}: {}", filter.text(), entry.why);
        Finding::judge(!entry.is_mistake, Verdict::Warn, "", text)
    }));
    found
}

fn control_port(machine: &Machine) -> Vec<Finding> {
    let Ok(Interface { address, .. }) = chosen(machine) else {
        return vec![Finding::unknown("", "no interface: see `control`")];
    };
    match TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
        Ok((place, _listener)) => vec![reached(place)],
        Err(problem) => vec![Finding::fail("", format!("nothing can listen on {}: {problem}", address.ip()))],
    }
}

/// Whether something that listens at `place` can be reached.
fn reached(place: SocketAddr) -> Finding {
    match TcpStream::connect_timeout(&place, TIME_LIMIT) {
        Ok(_) => Finding::ok("", format!("{place} was reached")),
        Err(problem) => Finding::fail("", format!("{place} cannot be reached: {problem}")),
    }
}

/// Why no other host reaches the address.
fn unreachable_reason(name: &str, address: SocketAddr) -> Option<&'static str> {
    let is_link_local = match address.ip() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.ip().is_loopback() {
        return Some("no other host reaches it");
    }
    if name.starts_with("docker") || name.starts_with("virbr") {
        return Some("a bridge of this host alone");
    }
    is_link_local.then_some("link-local, not routed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_refuses_fails() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let place = listener.local_addr().expect("its address");
        assert_eq!(reached(place).verdict, Verdict::Ok);
        let refusing = testkit::port::RefusingPort::new();
        assert_eq!(reached(refusing.address()).verdict, Verdict::Fail);
    }

    #[test]
    fn addresses_that_no_other_host_reaches_are_known() {
        let why = |name, address: &str| unreachable_reason(name, address.parse().expect("an address")).is_some();
        assert!(why("lo", "127.0.0.1:0") && why("docker0", "172.17.0.1:0") && why("eth0", "169.254.3.4:0"));
        assert!(why("eth0", "[fe80::1]:0"));
        assert!(!why("eth0", "10.0.0.1:0") && !why("ib0", "[fd00::1]:0"));
    }
}
