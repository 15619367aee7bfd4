//! The GID table: one entry, one typed entry, or all.

use std::ffi::c_int;
use std::ptr;

use crate::abi::export::export;
use crate::abi::types::{self, Gid, GidEntry};
use crate::host::errno::set_errno;
use crate::network::gid::{GidType, TypedGid};
use crate::shm::slots::{GIDS, PortSlot};
use crate::verbs::{code, context, minus_one};

// `ibv_gid_type`
const INFINIBAND: u32 = 0;
const ROCE_V1: u32 = 1;
const ROCE_V2: u32 = 2;

/// Empty entries read as zeros.
unsafe extern "C" fn query_gid(handle: *mut types::Context, port: u8, index: c_int, out: *mut Gid) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let port = unsafe { context(handle) }?.port(u32::from(port))?;
        let index = usize::try_from(index).ok().filter(|&i| i < GIDS).ok_or(libc::EINVAL)?;
        let gid = port.gid(index).unwrap_or_default().gid;
        // SAFETY: the caller's structure.
        unsafe { out.write(gid) };
        Ok(())
    })
}
export!("ibv_query_gid", "IBVERBS_1.1", query_gid);

/// GidEntry `index` of a table, unless it is empty.
fn entry(port: &PortSlot, port_num: u32, index: usize) -> Option<GidEntry> {
    let TypedGid { gid, kind } = port.gid(index)?;
    let gid_type = match kind {
        GidType::RoceV2 => ROCE_V2,
        GidType::Plain if port.is_infiniband() => INFINIBAND,
        GidType::Plain => ROCE_V1,
    };
    Some(GidEntry { gid, gid_index: index as u32, port_num, gid_type, ndev_ifindex: 0 })
}

/// Writes the part of `entry` that the caller's structure of `size` bytes has room for.
///
/// # Safety
/// `out` has `size` bytes.
unsafe fn write_entry(out: *mut u8, size: usize, entry: &GidEntry) {
    // SAFETY: by the caller; an entry has at least the bytes copied.
    unsafe {
        ptr::write_bytes(out, 0, size);
        ptr::copy_nonoverlapping((&raw const *entry).cast::<u8>(), out, size.min(size_of::<GidEntry>()));
    }
}

unsafe extern "C" fn query_gid_ex(
    handle: *mut types::Context,
    port: u32,
    index: u32,
    out: *mut u8,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let slot = unsafe { context(handle) }?.port(port)?;
        if index as usize >= GIDS || flags != 0 {
            return Err(libc::EINVAL);
        }
        let found = entry(slot, port, index as usize).ok_or(libc::ENODATA)?;
        // SAFETY: the caller's structure.
        unsafe { write_entry(out, size, &found) };
        Ok(())
    })
}
export!("_ibv_query_gid_ex", "IBVERBS_1.11", query_gid_ex);

/// All entries of all ports that are not empty. Returns how many there are, or a negative errno value.
unsafe extern "C" fn query_gid_table(
    handle: *mut types::Context,
    out: *mut u8,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut count = 0;
    let rc = code(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        if flags != 0 {
            return Err(libc::EINVAL);
        }
        for (port, index) in (1..=context.fabric.topology.ports()).flat_map(|port| (0..GIDS).map(move |i| (port, i))) {
            let Some(found) = entry(context.port(port)?, port, index) else { continue };
            if count == room {
                return Err(libc::EINVAL);
            }
            // SAFETY: the caller's array of `room` structures.
            unsafe { write_entry(out.add(count * size), size, &found) };
            count += 1;
        }
        Ok(())
    });
    if rc == 0 {
        return count as isize;
    }
    set_errno(rc);
    -(rc as isize)
}
export!("_ibv_query_gid_table", "IBVERBS_1.11", query_gid_table);

/// The type as sysfs counts it, where RoCE v1 and InfiniBand are one.
#[cfg(feature = "tools")]
pub(crate) unsafe extern "C" fn query_gid_type(
    handle: *mut types::Context,
    port: u8,
    index: u32,
    out: *mut u32,
) -> c_int {
    const SYSFS_IB_ROCE_V1: u32 = 0;
    const SYSFS_ROCE_V2: u32 = 1;
    minus_one(|| {
        // SAFETY: the caller's handle.
        let port = unsafe { context(handle) }?.port(u32::from(port))?;
        let index = usize::try_from(index).ok().filter(|&i| i < GIDS).ok_or(libc::EINVAL)?;
        let is_v2 = port.gid(index).is_some_and(|entry| entry.kind == GidType::RoceV2);
        // SAFETY: the caller's enumeration.
        unsafe { out.write(if is_v2 { SYSFS_ROCE_V2 } else { SYSFS_IB_ROCE_V1 }) };
        Ok(())
    })
}
