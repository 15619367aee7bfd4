//! The network interface over which connections are set up.

use super::gid::Family;
use crate::error::{Error, Result};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// A parsed `[^][=]name,…` of `NCCL_SOCKET_IFNAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    text: String,
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

/// A network interface with one of its addresses, whose port is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// The address.
    pub address: SocketAddr,
}

impl InterfaceFilter {
    /// Parses the setting. An empty text admits every interface.
    pub fn parse(text: &str) -> Self {
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names = rest.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        Self { text: text.to_owned(), exclude, exact, names }
    }

    fn admits(&self, name: &str) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let listed = self.names.iter().any(|n| if self.exact { name == n } else { name.starts_with(n.as_str()) });
        listed != self.exclude
    }
}

/// The interface to use: an IP-over-InfiniBand one if there is one, else an ordinary one, docker's, or loopback.
///
/// # Errors
/// No interface fits the settings. The text names them and the interfaces that there are.
pub fn choose(filter: &InterfaceFilter, family: Option<Family>) -> Result<Interface> {
    pick(&list()?, filter, family)
}

fn pick(all: &[Interface], filter: &InterfaceFilter, family: Option<Family>) -> Result<Interface> {
    let rank = |i: &&Interface| match i.name.as_str() {
        n if n.starts_with("ib") => 0,
        n if n.starts_with("docker") => 2,
        "lo" => 3,
        _ => 1,
    };
    let of_family = |i: &&Interface| family.is_none_or(|f| (f == Family::V4) == i.address.is_ipv4());
    let found = all.iter().filter(|i| filter.admits(&i.name)).filter(of_family).min_by_key(rank);
    found.cloned().ok_or_else(|| {
        let there = all.iter().map(|i| format!("{} ({})", i.name, i.address.ip())).collect::<Vec<_>>().join(", ");
        let there = if there.is_empty() { "none that is up".to_owned() } else { there };
        let family = family.map_or(String::new(), |f| format!(" and NCCL_SOCKET_FAMILY={f:?}"));
        Error::usage(format!("NCCL_SOCKET_IFNAME={}{family}: no interface fits; there are: {there}", filter.text))
    })
}

/// All addresses of interfaces that are up.
fn list() -> Result<Vec<Interface>> {
    let all = getifaddrs().map_err(|e| Error::os("getifaddrs", e as i32))?;
    let up = all.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP));
    let usable = up.filter_map(|entry| Some((entry.interface_name, address_of(entry.address.as_ref()?)?)));
    Ok(usable.map(|(name, address)| Interface { name, address }).collect())
}

fn address_of(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::V4(SocketAddrV4::new(v4.ip(), 0)));
    }
    let v6 = storage.as_sockaddr_in6().filter(|v6| !v6.ip().is_unspecified())?;
    Some(SocketAddr::V6(SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: &str) -> Interface {
        Interface { name: name.into(), address: SocketAddr::new(ip.parse().expect("an address"), 0) }
    }

    fn chosen(filter: &str, family: Option<Family>) -> Result<String> {
        let all = [
            interface("lo", "127.0.0.1"),
            interface("docker0", "172.17.0.1"),
            interface("eth0", "fe80::1"),
            interface("eth0", "10.0.0.1"),
            interface("eth10", "10.0.0.2"),
        ];
        pick(&all, &InterfaceFilter::parse(filter), family).map(|i| i.address.ip().to_string())
    }

    #[test]
    fn the_setting_and_the_order_choose_the_interface() {
        assert_eq!(chosen("", Some(Family::V4)).as_deref(), Ok("10.0.0.1"));
        assert_eq!(chosen("", None).as_deref(), Ok("fe80::1"));
        assert_eq!(chosen("lo", None).as_deref(), Ok("127.0.0.1"));
        assert_eq!(chosen("^eth", None).as_deref(), Ok("172.17.0.1"));
        assert_eq!(chosen("^=eth0", None).as_deref(), Ok("10.0.0.2"));
    }

    #[test]
    fn the_error_lists_the_interfaces_that_there_are() {
        let text = chosen("wlan", None).expect_err("there is none").text();
        assert!(text.contains("NCCL_SOCKET_IFNAME=wlan") && text.contains("eth10 (10.0.0.2)"), "{text}");
    }

    #[test]
    fn the_loopback_interface_is_listed() {
        assert!(list().expect("getifaddrs works").iter().any(|i| i.address.ip().is_loopback()));
    }
}
