//! Addresses of identifiers: which device has them.

use std::ffi::{c_char, c_int};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, Once};
use std::{mem, ptr};

use crate::abi::export::export;
use crate::abi::rdma_cm::{AddrInfo, CmId, PathRec, event, port_space, rai};
use crate::abi::types::{Context, Gid, Pd, qp_type};
use crate::host::{last_errno, lock, set_errno};
use crate::limits::DEVICES;
use crate::objects::context;
use crate::process::fabric::Fabric;
use crate::shm::slots::GIDS;
use crate::verbs::cm::connect;
use crate::verbs::cm::id::{Id, PKEY, Stage, State, What, complete, settle, show};
use crate::verbs::device::open_device;
use crate::verbs::engine::engine;
use crate::verbs::post::alloc_pd;
use crate::verbs::{minus_one, object, shared};

/// Ports that are given to who asks for none, as the kernel gives them.
const FREE_PORTS: std::ops::Range<u16> = 32768..60999;
/// A socket that has the name of the port, and its number: the one that is wanted, or for 0 any
/// that is free.
fn take_port(fabric: &Fabric, wanted: u16) -> Result<(std::os::fd::OwnedFd, u16), i32> {
    if wanted != 0 {
        return connect::bind(fabric, wanted).map(|socket| (socket, wanted));
    }
    let count = FREE_PORTS.end - FREE_PORTS.start;
    let first = (std::process::id() % u32::from(count)) as u16;
    for step in 0..count {
        let port = FREE_PORTS.start + (first + step) % count;
        match connect::bind(fabric, port) {
            Err(libc::EADDRINUSE) => {}
            other => return other.map(|socket| (socket, port)),
        }
    }
    Err(libc::EADDRNOTAVAIL)
}

/// Takes the address and its port; EADDRNOTAVAIL if it is none of this host, EADDRINUSE if another
/// has the port.
///
/// # Safety
/// As for [`settle`].
unsafe fn bind(id: &Id, state: &mut State, address: SocketAddr) -> Result<(), i32> {
    if state.stage != Stage::Idle {
        return Err(libc::EINVAL);
    }
    let fabric = engine()?.fabric;
    if !address.ip().is_unspecified() {
        let place = place_of(fabric, address.ip()).ok_or(libc::EADDRNOTAVAIL)?;
        // SAFETY: by the caller.
        unsafe { settle(id, state, place) }?;
    }
    let (socket, port) = take_port(fabric, address.port())?;
    state.socket = Some(socket);
    state.source = Some(SocketAddr::new(address.ip(), port));
    state.stage = Stage::Bound;
    // SAFETY: by the caller.
    unsafe { show(id, state) };
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_bind_addr(
    abi: *mut CmId,
    address: *const libc::sockaddr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle and structure.
        unsafe {
            let id: &Id = object(abi);
            bind(id, &mut lock(&id.state), read(address)?)
        }
    })
}
export!("rdma_bind_addr", "RDMACM_1.0", rdma_bind_addr);

/// The address that packets to `target` come from, if the application does not say one.
fn source_for(fabric: &Fabric, target: IpAddr) -> Option<IpAddr> {
    let place = place_of(fabric, target)?;
    let first = Place { device: 0, port: 1 };
    if ip_of(fabric, place) == Some(target.to_canonical()) {
        ip_of(fabric, first)
    } else {
        Some(target)
    }
}

/// # Safety
/// As for [`settle`].
unsafe fn resolve(
    id: &Id,
    state: &mut State,
    source: Option<SocketAddr>,
    target: SocketAddr,
) -> Result<(), i32> {
    if !matches!(state.stage, Stage::Idle | Stage::Bound) {
        return Err(libc::EINVAL);
    }
    let fabric = engine()?.fabric;
    let there = place_of(fabric, target.ip()).ok_or(libc::ENODEV)?;
    let bound = state.source.or(source).filter(|address| !address.ip().is_unspecified());
    let port = state.source.or(source).map_or(0, |address| address.port());
    let ip = bound
        .map(|address| address.ip())
        .or_else(|| source_for(fabric, target.ip()))
        .ok_or(libc::ENODEV)?;
    let place = place_of(fabric, ip).ok_or(libc::ENODEV)?;
    if state.socket.is_none() {
        let (socket, port) = take_port(fabric, port)?;
        (state.socket, state.source) = (Some(socket), Some(SocketAddr::new(ip, port)));
    } else {
        state.source = state.source.map(|bound| SocketAddr::new(ip, bound.port()));
    }
    state.target = Some(target);
    // SAFETY: by the caller.
    unsafe {
        settle(id, state, place)?;
        (*id.as_abi()).route.dgid = gid(fabric, there).ok_or(libc::ENODATA)?.1;
        show(id, state);
    }
    state.stage = Stage::AddressKnown;
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_resolve_addr(
    abi: *mut CmId,
    source: *const libc::sockaddr,
    target: *const libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    let begun = minus_one(|| {
        // SAFETY: the caller's handle and structures.
        unsafe {
            let id: Arc<Id> = shared(abi);
            let target = read(target)?;
            let source = if source.is_null() { None } else { Some(read(source)?) };
            let mut state = lock(&id.state);
            let what = match resolve(&id, &mut state, source, target) {
                Ok(()) => What::Plain(event::ADDR_RESOLVED, 0),
                // Nothing on the way there has it.
                Err(libc::ENODEV) => What::Plain(event::ADDR_ERROR, -libc::ENODEV),
                Err(code) => return Err(code),
            };
            id.tell(&state, what);
            Ok(())
        }
    });
    // SAFETY: the caller's handle.
    if begun == 0 { unsafe { complete(abi) } } else { begun }
}
export!("rdma_resolve_addr", "RDMACM_1.0", rdma_resolve_addr);

pub(super) unsafe extern "C" fn rdma_resolve_route(abi: *mut CmId, _timeout_ms: c_int) -> c_int {
    let begun = minus_one(|| {
        // SAFETY: the caller's handle.
        unsafe {
            let id: Arc<Id> = shared(abi);
            let mut state = lock(&id.state);
            let place =
                state.place.filter(|_| state.stage == Stage::AddressKnown).ok_or(libc::EINVAL)?;
            let slot = engine()?.fabric.port(place.device, place.port);
            let route = &mut (*abi).route;
            let (sgid, dgid, mtu) = (route.sgid, route.dgid, slot.mtu.load(SeqCst) as u8);
            let slid = (slot.lid.load(SeqCst) as u16).to_be();
            let known = PathRec {
                dgid,
                sgid,
                slid,
                hop_limit: 64,
                reversible: 1,
                numb_path: 1,
                pkey: PKEY,
                mtu,
                ..PathRec::default()
            };
            id.path().write(known);
            (route.path_rec, route.num_paths) = (id.path(), 1);
            state.stage = Stage::RouteKnown;
            id.tell(&state, What::Plain(event::ROUTE_RESOLVED, 0));
            Ok(())
        }
    });
    // SAFETY: the caller's handle.
    if begun == 0 { unsafe { complete(abi) } } else { begun }
}
export!("rdma_resolve_route", "RDMACM_1.0", rdma_resolve_route);

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

/// A copy of an address, which `freeaddrinfo` gives back.
///
/// # Safety
/// `address` has so many bytes.
unsafe fn copy(address: *const libc::sockaddr, length: u32) -> *mut libc::sockaddr {
    if address.is_null() || length == 0 {
        return ptr::null_mut();
    }
    // SAFETY: a new allocation of that length; by the caller.
    unsafe {
        let new = libc::malloc(length as usize);
        if !new.is_null() {
            ptr::copy_nonoverlapping(address.cast::<u8>(), new.cast(), length as usize);
        }
        new.cast()
    }
}

/// What the system's resolver says; its error is that of `getaddrinfo`.
///
/// # Safety
/// Both are C strings, or NULL.
unsafe fn resolve_names(
    node: *const c_char,
    service: *const c_char,
    hints: &AddrInfo,
    info: &mut AddrInfo,
) -> c_int {
    // SAFETY: all zeros are valid.
    let mut wanted: libc::addrinfo = unsafe { mem::zeroed() };
    let is_passive = hints.ai_flags & rai::PASSIVE != 0;
    wanted.ai_flags = if is_passive { libc::AI_PASSIVE } else { 0 };
    if hints.ai_flags & rai::NUMERIC_HOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_flags & rai::FAMILY != 0 {
        wanted.ai_family = hints.ai_family;
    }
    wanted.ai_socktype = libc::SOCK_STREAM;
    let mut found = ptr::null_mut();
    // SAFETY: by the caller; what is found is freed below.
    unsafe {
        let rc = libc::getaddrinfo(node, service, &raw const wanted, &raw mut found);
        if rc != 0 {
            return rc;
        }
        let one = &*found;
        info.ai_family = one.ai_family;
        if is_passive {
            (info.ai_src_addr, info.ai_src_len) =
                (copy(one.ai_addr, one.ai_addrlen), one.ai_addrlen);
        } else {
            (info.ai_dst_addr, info.ai_dst_len) =
                (copy(one.ai_addr, one.ai_addrlen), one.ai_addrlen);
        }
        libc::freeaddrinfo(found);
    }
    0
}

unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    out: *mut *mut AddrInfo,
) -> c_int {
    // SAFETY: the caller's structures and strings; all zeros are valid.
    unsafe {
        if node.is_null() && service.is_null() && hints.is_null() {
            set_errno(libc::EINVAL);
            return -1;
        }
        let none: AddrInfo = mem::zeroed();
        let hints = hints.as_ref().unwrap_or(&none);
        let mut info: AddrInfo = mem::zeroed();
        info.ai_flags = hints.ai_flags;
        info.ai_family = hints.ai_family;
        info.ai_port_space =
            if hints.ai_port_space == 0 { port_space::TCP } else { hints.ai_port_space };
        info.ai_qp_type = if hints.ai_qp_type == 0 { qp_type::RC } else { hints.ai_qp_type };
        if node.is_null() && service.is_null() {
            (info.ai_dst_addr, info.ai_dst_len) =
                (copy(hints.ai_dst_addr, hints.ai_dst_len), hints.ai_dst_len);
        } else {
            let rc = resolve_names(node, service, hints, &mut info);
            if rc != 0 {
                return rc;
            }
        }
        if info.ai_src_len == 0 {
            (info.ai_src_addr, info.ai_src_len) =
                (copy(hints.ai_src_addr, hints.ai_src_len), hints.ai_src_len);
        }
        out.write(Box::into_raw(Box::new(info)));
    }
    0
}
export!("rdma_getaddrinfo", "RDMACM_1.0", getaddrinfo);

unsafe extern "C" fn freeaddrinfo(info: *mut AddrInfo) {
    let mut at = info;
    while !at.is_null() {
        // SAFETY: takes back what `getaddrinfo` leaked.
        unsafe {
            let one = Box::from_raw(at);
            libc::free(one.ai_src_addr.cast());
            libc::free(one.ai_dst_addr.cast());
            at = one.ai_next;
        }
    }
}
export!("rdma_freeaddrinfo", "RDMACM_1.0", freeaddrinfo);

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
