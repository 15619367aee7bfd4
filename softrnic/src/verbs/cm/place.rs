//! Ports of devices, and their addresses.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, Once};
use std::{mem, ptr};

use crate::abi::types::{Context, Gid, Pd};
use crate::host::{last_errno, lock};
use crate::limits::DEVICES;
use crate::objects::context;
use crate::process::fabric::Fabric;
use crate::shm::slots::GIDS;
use crate::verbs::device::open_device;
use crate::verbs::engine::engine;
use crate::verbs::post::alloc_pd;

/// A port of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: usize,
    pub(super) port: u32,
}

/// Who has addresses of this host that are none of a device's: its first port.
const FIRST: Place = Place { device: 0, port: 1 };

/// Reads an address of the socket interface: IPv4 and IPv6.
///
/// # Safety
/// `address` is NULL, or as long as its family says.
pub(super) unsafe fn read(address: *const libc::sockaddr) -> Result<SocketAddr, i32> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the caller.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let found = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
                Ok(SocketAddr::new(ip.into(), u16::from_be(found.sin_port)))
            }
            libc::AF_INET6 => {
                let found = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
                Ok(SocketAddr::new(ip.into(), u16::from_be(found.sin6_port)))
            }
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}

/// The address as the socket interface has it.
pub(super) fn storage(address: SocketAddr) -> [u64; 16] {
    let mut out = [0u64; 16];
    let at = out.as_mut_ptr();
    // SAFETY: both structures are shorter than the array; all zeros are valid.
    unsafe {
        match address {
            SocketAddr::V4(address) => {
                let mut one: libc::sockaddr_in = mem::zeroed();
                one.sin_family = libc::AF_INET as u16;
                one.sin_port = address.port().to_be();
                one.sin_addr.s_addr = u32::from(*address.ip()).to_be();
                ptr::copy_nonoverlapping(&raw const one, at.cast(), 1);
            }
            SocketAddr::V6(address) => {
                let mut one: libc::sockaddr_in6 = mem::zeroed();
                one.sin6_family = libc::AF_INET6 as u16;
                one.sin6_port = address.port().to_be();
                one.sin6_addr.s6_addr = address.ip().octets();
                ptr::copy_nonoverlapping(&raw const one, at.cast(), 1);
            }
        }
    }
    out
}

/// The GID by which connections of a port are made: that of its IPv4 address, or else its first
/// one.
pub(super) fn gid(fabric: &Fabric, place: Place) -> Option<(u8, Gid)> {
    let slot = fabric.port(place.device, place.port);
    [1, 0].into_iter().find_map(|index| slot.gid(index).map(|found| (index as u8, found.gid)))
}

/// The IP address that the GID of a port is.
pub(super) fn ip_of(fabric: &Fabric, place: Place) -> Option<IpAddr> {
    gid(fabric, place).map(|(_, gid)| Ipv6Addr::from(gid).to_canonical())
}

/// Which port has this address; `None`: no device has a way there.
pub(super) fn place_of(fabric: &Fabric, ip: IpAddr) -> Option<Place> {
    let ip = ip.to_canonical();
    let places = (0..fabric.topology.devices())
        .flat_map(|device| (1..=fabric.topology.ports()).map(move |port| Place { device, port }));
    let has = |place: &Place| {
        let slot = fabric.port(place.device, place.port);
        (0..GIDS)
            .filter_map(|index| slot.gid(index))
            .any(|found| Ipv6Addr::from(found.gid).to_canonical() == ip)
    };
    let of_device = places.into_iter().find(has);
    of_device.or_else(|| (ip.is_loopback() || is_of_host(ip)).then_some(FIRST))
}

/// Whether an interface of this host has it.
fn is_of_host(ip: IpAddr) -> bool {
    let mut list = ptr::null_mut();
    // SAFETY: the list is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return false;
    }
    let (mut at, mut found) = (list, false);
    while !at.is_null() && !found {
        // SAFETY: entries of the list, until it is freed; their addresses are NULL or whole.
        unsafe {
            found = read((*at).ifa_addr).is_ok_and(|address| address.ip().to_canonical() == ip);
            at = (*at).ifa_next;
        }
    }
    // SAFETY: made above.
    unsafe { libc::freeifaddrs(list) };
    found
}

// Devices that are opened once for the process, and stay open: all identifiers on one have the same
// context and the same default protection domain.

/// The application's handles, as numbers; 0: not opened yet.
#[derive(Clone, Copy)]
struct Opened {
    context: usize,
    pd: usize,
}

type Table = Mutex<[Opened; DEVICES]>;

static OPENED: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
static HANDLER: Once = Once::new();

fn opened() -> &'static Table {
    let mut table = OPENED.load(SeqCst);
    if table.is_null() {
        // SAFETY: a plain function of a library that is never unloaded (-z nodelete).
        HANDLER.call_once(|| unsafe { _ = libc::pthread_atfork(None, None, Some(in_child)) });
        let new = Box::into_raw(Box::new(Mutex::new([Opened { context: 0, pd: 0 }; DEVICES])));
        table = match OPENED.compare_exchange(ptr::null_mut(), new, SeqCst, SeqCst) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: a leaked box.
    unsafe { &*table }
}

/// After fork, in the child: what is open is the parent's.
extern "C" fn in_child() {
    OPENED.store(ptr::null_mut(), SeqCst);
}

/// The context and the default protection domain of a device.
pub(super) fn open(index: usize) -> Result<(*mut Context, *mut Pd), i32> {
    let mut opened = lock(opened());
    let entry = &mut opened[index];
    if entry.context == 0 {
        let device = context::all().get(index).ok_or(libc::ENODEV)?;
        // SAFETY: a device of the list.
        let context = unsafe { open_device(device.as_abi()) };
        if context.is_null() {
            return Err(last_errno());
        }
        entry.context = context as usize;
    }
    if entry.pd == 0 {
        // SAFETY: a context that is never closed.
        let pd = unsafe { alloc_pd(entry.context as *mut Context) };
        if pd.is_null() {
            return Err(last_errno());
        }
        entry.pd = pd as usize;
    }
    Ok((entry.context as *mut Context, entry.pd as *mut Pd))
}

/// The contexts of all devices.
pub(super) fn all() -> Result<Vec<*mut Context>, i32> {
    let count = engine()?.fabric.topology.devices();
    (0..count).map(|index| open(index).map(|(context, _)| context)).collect()
}

/// For `rdma_get_devices`.
pub(super) unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut Context {
    crate::verbs::pointer(|| {
        let found = all()?;
        // SAFETY: plain allocation, released by `free_devices`; one more entry ends the list.
        let list = unsafe { libc::calloc(found.len() + 1, size_of::<*mut Context>()) }
            .cast::<*mut Context>();
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        for (i, context) in found.iter().enumerate() {
            // SAFETY: inside the allocation.
            unsafe { list.add(i).write(*context) };
        }
        if !count.is_null() {
            // SAFETY: the caller's structure.
            unsafe { count.write(found.len() as c_int) };
        }
        Ok(list)
    })
}
crate::abi::export::export!("rdma_get_devices", "RDMACM_1.0", get_devices);

unsafe extern "C" fn free_devices(list: *mut *mut Context) {
    // SAFETY: allocated by `get_devices`; the devices stay open.
    unsafe { libc::free(list.cast()) };
}
crate::abi::export::export!("rdma_free_devices", "RDMACM_1.0", free_devices);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["127.0.0.1:7174", "[::1]:18515", "10.82.1.2:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            let written = storage(address);
            // SAFETY: a whole address.
            assert_eq!(unsafe { read(written.as_ptr().cast()) }, Ok(address));
        }
        let unknown = [0u64; 16];
        // SAFETY: as above.
        assert_eq!(unsafe { read(unknown.as_ptr().cast()) }, Err(libc::EAFNOSUPPORT));
    }

    #[test]
    fn addresses_of_this_host_are_known() {
        assert!(is_of_host(IpAddr::from([127, 0, 0, 1])));
        assert!(!is_of_host(IpAddr::from([192, 0, 2, 1])), "one for documents");
    }
}
