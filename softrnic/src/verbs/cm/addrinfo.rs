//! `rdma_getaddrinfo`: names as the system resolves them.

use std::ffi::{c_char, c_int};
use std::mem;
use std::ptr;

use crate::abi::consts::qp_type;
use crate::abi::export::export;
use crate::abi::rdma_cm::{AddrInfo, port_space, rai};
use crate::host::errno::set_errno;

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
unsafe fn resolve(node: *const c_char, service: *const c_char, hints: &AddrInfo, info: &mut AddrInfo) -> c_int {
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
            (info.ai_src_addr, info.ai_src_len) = (copy(one.ai_addr, one.ai_addrlen), one.ai_addrlen);
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = (copy(one.ai_addr, one.ai_addrlen), one.ai_addrlen);
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
        info.ai_port_space = if hints.ai_port_space == 0 { port_space::TCP } else { hints.ai_port_space };
        info.ai_qp_type = if hints.ai_qp_type == 0 { qp_type::RC } else { hints.ai_qp_type };
        if node.is_null() && service.is_null() {
            (info.ai_dst_addr, info.ai_dst_len) = (copy(hints.ai_dst_addr, hints.ai_dst_len), hints.ai_dst_len);
        } else {
            let rc = resolve(node, service, hints, &mut info);
            if rc != 0 {
                return rc;
            }
        }
        if info.ai_src_len == 0 {
            (info.ai_src_addr, info.ai_src_len) = (copy(hints.ai_src_addr, hints.ai_src_len), hints.ai_src_len);
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
