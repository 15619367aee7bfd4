//! The network interface for connection set-up: the one that NCCL uses for its own bootstrap, which
//! is known to work.

use super::gid::Family;
use super::name_list::{NameList, NoEffect};
use crate::error::{Error, Result};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The parts of `NCCL_SOCKET_IFNAME`, `NCCL_SOCKET_FAMILY` and `NCCL_COMM_ID` that choose an
/// interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    list: NameList,
    family: Option<Family>,
    /// The address in `NCCL_COMM_ID`, whose network is preferred.
    root: Option<IpAddr>,
}

/// A network interface with one of its addresses, whose port is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// The address.
    pub address: SocketAddr,
}

/// One of the existing interfaces.
#[derive(Debug, Clone)]
struct Listed {
    interface: Interface,
    /// Its network's mask.
    mask: Option<IpAddr>,
}

/// What NCCL looks for if the user names no interface, in its order, after the network of
/// `NCCL_COMM_ID`. Before 2.28, `virbr` is like any other.
const USUAL: [&str; 5] = ["ib", "^docker,lo,virbr", "docker", "lo", "virbr"];
/// Names of the list that NCCL reads.
const MAX_NAMES: usize = 16;

impl InterfaceFilter {
    /// Parses the settings; texts may be empty. As in NCCL, a list of one character counts as none,
    /// and a name ends at a colon.
    pub fn parse(list: &str, family: Option<Family>, comm_id: &str) -> Self {
        let mut list = NameList::parse(if list.len() > 1 { list } else { "" });
        list.names.truncate(MAX_NAMES);
        for name in &mut list.names {
            name.truncate(name.find(':').unwrap_or(name.len()));
        }
        Self { list, family, root: Self::root(comm_id) }
    }

    /// The address of `NCCL_COMM_ID`. NCCL uses it even with a missing or impossible port.
    fn root(comm_id: &str) -> Option<IpAddr> {
        let host = match comm_id.strip_prefix('[') {
            Some(v6) => v6.split([']', '%']).next(),
            None => comm_id.split(':').next(),
        };
        host?.parse().ok()
    }

    fn admits(list: &NameList, name: &str) -> bool {
        list.names.iter().any(|entry| list.fits(entry, name)) != list.exclude
    }

    /// The first that matches the user's list, or else what NCCL would look for.
    fn pick<'l>(&self, all: &'l [Listed]) -> Option<&'l Listed> {
        let of_family = |one: &&Listed| {
            self.family.is_none_or(|f| (f == Family::V4) == one.interface.address.is_ipv4())
        };
        let first = |list: &NameList| {
            all.iter().filter(of_family).find(|one| Self::admits(list, &one.interface.name))
        };
        if !self.list.text.is_empty() {
            return first(&self.list);
        }
        let is_near = |one: &&Listed| {
            let root = self.root.zip(one.mask);
            root.is_some_and(|(root, mask)| {
                are_in_one_network(root, one.interface.address.ip(), mask)
            })
        };
        let near = all.iter().filter(of_family).find(is_near);
        near.or_else(|| USUAL.iter().find_map(|list| first(&NameList::parse(list))))
    }

    /// Names of the list that match no interface, and why; for the log.
    pub fn without_effect(&self) -> Vec<NoEffect> {
        let Ok(all) = list() else { return Vec::new() };
        let mut there: Vec<&str> = all.iter().map(|one| one.interface.name.as_str()).collect();
        there.dedup();
        let entries = self
            .list
            .names
            .iter()
            .filter(|entry| !there.iter().any(|name| self.list.fits(entry, name)));
        entries.map(|entry| self.list.why_nothing("interface that is up", entry, &there)).collect()
    }

    /// The list.
    pub fn text(&self) -> &str {
        &self.list.text
    }
}

fn are_in_one_network(one: IpAddr, other: IpAddr, mask: IpAddr) -> bool {
    match (one, other, mask) {
        (IpAddr::V4(one), IpAddr::V4(other), IpAddr::V4(mask)) => {
            u32::from(one) & u32::from(mask) == u32::from(other) & u32::from(mask)
        }
        (IpAddr::V6(one), IpAddr::V6(other), IpAddr::V6(mask)) => {
            u128::from(one) & u128::from(mask) == u128::from(other) & u128::from(mask)
        }
        _ => false,
    }
}

/// The interface to use.
///
/// # Errors
/// No interface fits the settings. The text names them and the existing interfaces.
pub fn choose(filter: &InterfaceFilter) -> Result<Interface> {
    chosen(&list()?, filter)
}

fn chosen(all: &[Listed], filter: &InterfaceFilter) -> Result<Interface> {
    filter.pick(all).map(|one| one.interface.clone()).ok_or_else(|| {
        let each =
            |one: &Listed| format!("{} ({})", one.interface.name, one.interface.address.ip());
        let there = all.iter().map(each).collect::<Vec<_>>().join(", ");
        let there = if there.is_empty() { "none that are up".to_owned() } else { there };
        let family =
            filter.family.map_or(String::new(), |f| format!(" and NCCL_SOCKET_FAMILY={f:?}"));
        Error::usage(format!(
            "NCCL_SOCKET_IFNAME={}{family}: no interface fits; there are: {there}",
            filter.list.text
        ))
    })
}

/// The addresses that NCCL considers, in the system's order, without IPv6 loopback: those of
/// running interfaces, if any is running. (NCCL before 2.28 takes others as well.)
fn list() -> Result<Vec<Listed>> {
    let all: Vec<_> = getifaddrs().map_err(|e| Error::os("getifaddrs", e as i32))?.collect();
    let with = |flag| {
        let has = all.iter().filter(move |entry| entry.flags.contains(flag));
        let usable = has.filter_map(|entry| {
            let address = address_of(entry.address.as_ref()?)?;
            let mask = entry.netmask.as_ref().and_then(ip_of);
            Some(Listed {
                interface: Interface { name: entry.interface_name.clone(), address },
                mask,
            })
        });
        usable.collect::<Vec<_>>()
    };
    let running = with(InterfaceFlags::IFF_RUNNING);
    Ok(if running.is_empty() { with(InterfaceFlags::IFF_UP) } else { running })
}

fn ip_of(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn address_of(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::V4(SocketAddrV4::new(v4.ip(), 0)));
    }
    let v6 = storage
        .as_sockaddr_in6()
        .filter(|v6| !v6.ip().is_unspecified() && !v6.ip().is_loopback())?;
    Some(SocketAddr::V6(SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str, ip: &str) -> Listed {
        let interface = Interface {
            name: name.into(),
            address: SocketAddr::new(ip.parse().expect("an address"), 0),
        };
        let mask =
            if interface.address.is_ipv4() { "255.255.255.0" } else { "ffff:ffff:ffff:ffff::" };
        Listed { interface, mask: mask.parse().ok() }
    }

    fn of(names: &[&str], setting: &str, family: Option<Family>, comm_id: &str) -> Result<String> {
        const ADDRESSES: [(&str, &str); 8] = [
            ("lo", "127.0.0.1"),
            ("virbr0", "192.168.122.1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "10.0.0.1"),
            ("eth10", "10.0.2.2"),
            ("lo:0", "10.9.9.9"),
            ("ib0", "10.8.0.1"),
        ];
        let there = ADDRESSES.iter().filter(|(name, _)| names.is_empty() || names.contains(name));
        let all: Vec<Listed> = there.map(|(name, ip)| listed(name, ip)).collect();
        chosen(&all, &InterfaceFilter::parse(setting, family, comm_id))
            .map(|i| i.address.ip().to_string())
    }

    #[test]
    fn without_a_setting_it_is_the_first_of_nccls_order() {
        let fast = |names: &[&str]| of(names, "", None, "");
        assert_eq!(fast(&[]).as_deref(), Ok("10.8.0.1"));
        let without = ["lo", "virbr0", "docker0", "eth0", "eth10", "lo:0"];
        assert_eq!(
            fast(&without).as_deref(),
            Ok("fe80::1"),
            "the first address of the first interface"
        );
        assert_eq!(of(&without, "", Some(Family::V4), "").as_deref(), Ok("10.0.0.1"));
        assert_eq!(fast(&["lo", "virbr0", "docker0", "lo:0"]).as_deref(), Ok("172.17.0.1"));
        assert_eq!(
            fast(&["virbr0", "lo:0"]).as_deref(),
            Ok("10.9.9.9"),
            "lo is a prefix, and precedes virbr"
        );
        assert_eq!(fast(&["virbr0"]).as_deref(), Ok("192.168.122.1"));
    }

    #[test]
    fn the_network_of_the_communicators_id_comes_first_unless_the_user_names_an_interface() {
        let names = ["eth0", "eth10"];
        assert_eq!(of(&names, "", None, "10.0.2.77:29500").as_deref(), Ok("10.0.2.2"));
        assert_eq!(of(&[], "", None, "10.0.2.77:29500").as_deref(), Ok("10.0.2.2"), "before ib0");
        assert_eq!(
            of(&names, "", None, "10.0.2.77:70000").as_deref(),
            Ok("10.0.2.2"),
            "whatever its port"
        );
        assert_eq!(of(&[], "ib", None, "10.0.2.77:29500").as_deref(), Ok("10.8.0.1"));
        assert_eq!(of(&names, "", Some(Family::V4), "not an address").as_deref(), Ok("10.0.0.1"));
    }

    #[test]
    fn of_the_interfaces_that_the_user_admits_the_first_counts() {
        let set = |setting: &str| of(&[], setting, None, "");
        assert_eq!(set("lo").as_deref(), Ok("127.0.0.1"));
        assert_eq!(set("^eth").as_deref(), Ok("127.0.0.1"));
        assert_eq!(set("^docker,lo").as_deref(), Ok("192.168.122.1"), "ib0 is not preferred");
        assert_eq!(set("ib,eth").as_deref(), Ok("fe80::1"), "a set, not an order");
        assert_eq!(set("=eth10").as_deref(), Ok("10.0.2.2"));
        assert_eq!(set("eth10, ib").as_deref(), Ok("10.0.2.2"), "the blank belongs to the name");
        assert_eq!(set("=eth10:1").as_deref(), Ok("10.0.2.2"), "a name ends at a colon");
        assert!(set("=eth").is_err() && set(" ib").is_err());
    }

    #[test]
    fn the_error_lists_the_interfaces_that_there_are() {
        let text = of(&[], "wlan", None, "").expect_err("there is none").text();
        assert!(
            text.contains("NCCL_SOCKET_IFNAME=wlan") && text.contains("eth10 (10.0.2.2)"),
            "{text}"
        );
    }

    #[test]
    fn the_loopback_interface_is_listed() {
        assert!(
            list().expect("getifaddrs works").iter().any(|one| one
                .interface
                .address
                .ip()
                .is_loopback())
        );
    }

    #[test]
    fn a_name_that_no_interface_has_is_reported() {
        let said = InterfaceFilter::parse("lo,nowhere9", None, "").without_effect();
        assert!(
            said.len() == 1 && said[0].is_mistake && said[0].why.contains("nowhere9; there are: "),
            "{said:?}"
        );
    }
}
