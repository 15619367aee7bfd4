//! libibverbs, loaded at run time.

use super::sys;
use crate::error::{Error, Result};
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;

macro_rules! functions {
    (required { $($name:ident @ $version:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
     optional { $($oname:ident @ $oversion:literal: fn($($oarg:ty),*) $(-> $oret:ty)?;)* }) => {
        /// The functions of libibverbs, which is loaded once and never unloaded.
        #[derive(Debug)]
        pub struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub(super) $oname: Option<unsafe extern "C" fn($($oarg),*) $(-> $oret)?>,)*
        }

        impl Library {
            /// Binds the functions that `symbol` returns by name and version.
            ///
            /// # Errors
            /// A required one is missing.
            ///
            /// # Safety
            /// Each is a function with libibverbs' signature for this name and version, and is
            /// never unloaded.
            pub unsafe fn bind(symbol: impl Fn(&str, &str) -> Option<NonNull<c_void>>) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        let address = symbol(stringify!($name), $version)
                            .ok_or_else(|| Error::os(concat!("looking up ", stringify!($name), "@", $version, " in libibverbs"), libc::ENOSYS))?;
                        // SAFETY: the caller's contract.
                        unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(address) }
                    },)*
                    $($oname: symbol(stringify!($oname), $oversion).map(|address| {
                        // SAFETY: the caller's contract.
                        unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($oarg),*) $(-> $oret)?>(address) }
                    }),)*
                })
            }

            /// The optional functions that this libibverbs lacks, each with the version that
            /// introduced it.
            pub fn missing(&self) -> Vec<(&'static str, &'static str)> {
                let optional = [$((stringify!($oname), $oversion, self.$oname.is_some())),*];
                optional.into_iter().filter(|(_, _, is_there)| !is_there).map(|(name, version, _)| (name, version)).collect()
            }
        }
    };
}

functions! {
    required {
        ibv_get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut sys::ibv_device;
        ibv_free_device_list @ "IBVERBS_1.1": fn(*mut *mut sys::ibv_device);
        ibv_get_device_name @ "IBVERBS_1.1": fn(*mut sys::ibv_device) -> *const c_char;
        ibv_get_device_guid @ "IBVERBS_1.1": fn(*mut sys::ibv_device) -> u64;
        ibv_open_device @ "IBVERBS_1.1": fn(*mut sys::ibv_device) -> *mut sys::ibv_context;
        ibv_close_device @ "IBVERBS_1.1": fn(*mut sys::ibv_context) -> c_int;
        ibv_get_async_event @ "IBVERBS_1.1": fn(*mut sys::ibv_context, *mut sys::ibv_async_event) -> c_int;
        ibv_ack_async_event @ "IBVERBS_1.1": fn(*mut sys::ibv_async_event);
        ibv_query_device @ "IBVERBS_1.1": fn(*mut sys::ibv_context, *mut sys::ibv_device_attr) -> c_int;
        ibv_query_port @ "IBVERBS_1.1": fn(*mut sys::ibv_context, u8, *mut sys::ibv_port_attr) -> c_int;
        ibv_query_pkey @ "IBVERBS_1.1": fn(*mut sys::ibv_context, u8, c_int, *mut u16) -> c_int;
        ibv_query_gid @ "IBVERBS_1.1": fn(*mut sys::ibv_context, u8, c_int, *mut sys::ibv_gid) -> c_int;
        ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut sys::ibv_context) -> *mut sys::ibv_pd;
        ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut sys::ibv_pd) -> c_int;
        ibv_reg_mr @ "IBVERBS_1.1": fn(*mut sys::ibv_pd, *mut c_void, usize, c_int) -> *mut sys::ibv_mr;
        ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut sys::ibv_mr) -> c_int;
        ibv_create_cq @ "IBVERBS_1.1": fn(*mut sys::ibv_context, c_int, *mut c_void, *mut sys::ibv_comp_channel, c_int) -> *mut sys::ibv_cq;
        ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut sys::ibv_cq) -> c_int;
        ibv_create_qp @ "IBVERBS_1.1": fn(*mut sys::ibv_pd, *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp;
        ibv_modify_qp @ "IBVERBS_1.1": fn(*mut sys::ibv_qp, *mut sys::ibv_qp_attr, c_int) -> c_int;
        ibv_query_qp @ "IBVERBS_1.1": fn(*mut sys::ibv_qp, *mut sys::ibv_qp_attr, c_int, *mut sys::ibv_qp_init_attr) -> c_int;
        ibv_destroy_qp @ "IBVERBS_1.1": fn(*mut sys::ibv_qp) -> c_int;
        ibv_fork_init @ "IBVERBS_1.1": fn() -> c_int;
    }
    optional {
        _ibv_query_gid_ex @ "IBVERBS_1.11": fn(*mut sys::ibv_context, u32, u32, *mut sys::ibv_gid_entry, u32, usize) -> c_int;
        ibv_query_port_speed @ "IBVERBS_1.16": fn(*mut sys::ibv_context, u32, *mut u64) -> c_int;
        ibv_query_ece @ "IBVERBS_1.10": fn(*mut sys::ibv_qp, *mut sys::ibv_ece) -> c_int;
        ibv_set_ece @ "IBVERBS_1.10": fn(*mut sys::ibv_qp, *mut sys::ibv_ece) -> c_int;
        ibv_qp_to_qp_ex @ "IBVERBS_1.6": fn(*mut sys::ibv_qp) -> *mut sys::ibv_qp_ex;
        ibv_reg_mr_iova2 @ "IBVERBS_1.8": fn(*mut sys::ibv_pd, *mut c_void, usize, u64, u32) -> *mut sys::ibv_mr;
        ibv_reg_dmabuf_mr @ "IBVERBS_1.12": fn(*mut sys::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut sys::ibv_mr;
    }
}

impl Library {
    /// Loads `path`, or the system's libibverbs when it is `None`.
    ///
    /// # Errors
    /// There is no such library, or it lacks a required function. Every libibverbs since 2008 has
    /// these.
    pub fn load(path: Option<&str>) -> Result<Self> {
        let names = path.map_or_else(|| vec!["libibverbs.so.1", "libibverbs.so"], |p| vec![p]);
        let mut reasons = Vec::new();
        for name in names {
            match open(name) {
                Ok(handle) => {
                    // SAFETY: libibverbs' versioning promises the signatures, and it is never
                    // unloaded.
                    return unsafe { Self::bind(|name, version| symbol(handle, name, version)) };
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Err(Error::system(format!("no libibverbs: {}", reasons.join("; "))))
    }

    /// The file that it was loaded from, according to the dynamic loader, if known.
    pub fn path(&self) -> Option<PathBuf> {
        // SAFETY: zero is valid for a struct of pointers.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: looks the address up, and writes the struct.
        let is_known =
            unsafe { libc::dladdr(self.ibv_get_device_list as *const c_void, &raw mut info) } != 0;
        if !is_known || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name of a library that is never unloaded.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }
}

fn open(name: &str) -> std::result::Result<*mut c_void, String> {
    let name = CString::new(name).map_err(|e| e.to_string())?;
    // SAFETY: the name is a C string; libibverbs' constructors do nothing that needs more than a
    // loaded libc.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: dlerror returns NULL or a string that is valid until the next dl call of this thread.
    let reason = unsafe { libc::dlerror() };
    if reason.is_null() {
        return Err("dlopen gave no reason".into());
    }
    // SAFETY: not NULL, see above.
    Err(unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned())
}

fn symbol(handle: *mut c_void, name: &str, version: &str) -> Option<NonNull<c_void>> {
    let (name, version) = (CString::new(name).ok()?, CString::new(version).ok()?);
    // SAFETY: both are C strings, and the handle came from dlopen and is never closed.
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    NonNull::new(address)
}
