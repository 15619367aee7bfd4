//! Addresses of identifiers: which device has them.

use std::ffi::{c_char, c_int};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::{mem, ptr};

use crate::abi::export::export;
use crate::abi::rdma_cm::{AddrInfo, CmId, PathRec, event, port_space, rai};
use crate::abi::types::qp_type;
use crate::host::{lock, set_errno};
use crate::process::fabric::Fabric;
use crate::verbs::cm::events::complete;
use crate::verbs::cm::id::{Id, PKEY, Stage, State, What, settle, show};
use crate::verbs::cm::message;
use crate::verbs::cm::place::{Place, gid, ip_of, place_of, read};
use crate::verbs::engine::engine;
use crate::verbs::{minus_one, object, shared};

/// Ports that are given to who asks for none, as the kernel gives them.
const FREE_PORTS: std::ops::Range<u16> = 32768..60999;
/// A socket that has the name of the port, and its number: the one that is wanted, or for 0 any
/// that is free.
fn take_port(fabric: &Fabric, wanted: u16) -> Result<(std::os::fd::OwnedFd, u16), i32> {
    if wanted != 0 {
        return message::bind(fabric, wanted).map(|socket| (socket, wanted));
    }
    let count = FREE_PORTS.end - FREE_PORTS.start;
    let first = (std::process::id() % u32::from(count)) as u16;
    for step in 0..count {
        let port = FREE_PORTS.start + (first + step) % count;
        match message::bind(fabric, port) {
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
