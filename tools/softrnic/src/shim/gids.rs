//! The GID table: one entry, one typed entry, or all.

use std::ffi::c_int;
use std::ptr;

use super::{code, context, minus_one};
use crate::abi::export::export;
use crate::abi::types::{self, Gid, GidEntry};
use crate::device::{Device, GIDS};
use crate::notice::set_errno;

const ROCE_V2: u32 = 2;

unsafe extern "C" fn query_gid(handle: *mut types::Context, port: u8, index: c_int, out: *mut Gid) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        let index = u32::try_from(index).ok().filter(|&i| i < GIDS && port == 1).ok_or(libc::EINVAL)?;
        // SAFETY: the caller's structure.
        unsafe { out.write(context.device.gid(index)) };
        Ok(())
    })
}
export!("ibv_query_gid", "IBVERBS_1.1", query_gid);

fn entry(device: &Device, index: u32) -> GidEntry {
    GidEntry { gid: device.gid(index), gid_index: index, port_num: 1, gid_type: ROCE_V2, ndev_ifindex: 0 }
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
        let context = unsafe { context(handle) }?;
        if port != 1 || index >= GIDS || flags != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's structure.
        unsafe { write_entry(out, size, &entry(context.device, index)) };
        Ok(())
    })
}
export!("_ibv_query_gid_ex", "IBVERBS_1.11", query_gid_ex);

/// Returns how many entries there are, or a negative errno value.
unsafe extern "C" fn query_gid_table(
    handle: *mut types::Context,
    out: *mut u8,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let rc = code(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        if room < GIDS as usize || flags != 0 {
            return Err(libc::EINVAL);
        }
        for index in 0..GIDS {
            // SAFETY: the caller's array of `room` structures.
            unsafe { write_entry(out.add(index as usize * size), size, &entry(context.device, index)) };
        }
        Ok(())
    });
    if rc == 0 {
        return GIDS as isize;
    }
    set_errno(rc);
    -(rc as isize)
}
export!("_ibv_query_gid_table", "IBVERBS_1.11", query_gid_table);

/// The type as sysfs counts it, where RoCE v1 and InfiniBand are one.
#[cfg(feature = "tools")]
pub(super) unsafe extern "C" fn query_gid_type(
    handle: *mut types::Context,
    port: u8,
    index: u32,
    out: *mut u32,
) -> c_int {
    const SYSFS_ROCE_V2: u32 = 1;
    minus_one(|| {
        // SAFETY: the caller's handle.
        unsafe { context(handle) }?;
        if port != 1 || index >= GIDS {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's enumeration.
        unsafe { out.write(SYSFS_ROCE_V2) };
        Ok(())
    })
}
