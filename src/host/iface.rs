//! The network interface over which connections are set up.

use super::gid::Family;
use crate::error::{Error, Result, errno};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A parsed `[^][=]name,…` of `NCCL_SOCKET_IFNAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    text: String,
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

/// An interface with one of its addresses; the port is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// The address.
    pub address: SocketAddr,
}

impl InterfaceFilter {
    /// Reads the grammar; an empty text lets everything through.
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

/// The interface to use: InfiniBand ones first, then ordinary ones, then docker's, then loopback.
///
/// # Errors
/// None fits; the text names the setting and what there is.
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
        let family = family.map_or(String::new(), |f| format!(" and NCCL_SOCKET_FAMILY={f:?}"));
        Error::usage(format!("NCCL_SOCKET_IFNAME={}{family}: no interface fits; there are: {there}", filter.text))
    })
}

fn list() -> Result<Vec<Interface>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` is a valid place for the list.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(Error::os("getifaddrs", errno()));
    }
    let mut found = Vec::new();
    let mut cursor = head;
    while !cursor.is_null() {
        // SAFETY: an element of the list that getifaddrs made and that is freed only below.
        let entry = unsafe { &*cursor };
        let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        if let Some(address) = address_of(entry.ifa_addr).filter(|_| up) {
            // SAFETY: every element has a name, a C string.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            found.push(Interface { name, address });
        }
        cursor = entry.ifa_next;
    }
    // SAFETY: made by getifaddrs, freed once, and nothing borrowed is left.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

fn address_of(raw: *const libc::sockaddr) -> Option<SocketAddr> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a socket address of the family it names.
    match i32::from(unsafe { (*raw).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let v4 = unsafe { *raw.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(ip, 0)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let v6 = unsafe { *raw.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let usable = ip.is_loopback() || IpAddr::V6(ip) != IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            usable.then(|| SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, v6.sin6_scope_id)))
        }
        _ => None,
    }
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
    fn grammar_and_order() {
        assert_eq!(chosen("", Some(Family::V4)).as_deref(), Ok("10.0.0.1"));
        assert_eq!(chosen("", None).as_deref(), Ok("fe80::1"));
        assert_eq!(chosen("lo", None).as_deref(), Ok("127.0.0.1"));
        assert_eq!(chosen("^eth", None).as_deref(), Ok("172.17.0.1"));
        assert_eq!(chosen("^=eth0", None).as_deref(), Ok("10.0.0.2"));
    }

    #[test]
    fn nothing_fits() {
        let text = chosen("wlan", None).expect_err("there is none").text.clone();
        assert!(text.contains("NCCL_SOCKET_IFNAME=wlan") && text.contains("eth10 (10.0.0.2)"), "{text}");
    }

    #[test]
    fn this_machine_has_a_loopback() {
        assert!(list().expect("getifaddrs works").iter().any(|i| i.address.ip().is_loopback()));
    }
}
