//! GPU memory that another process is to use: what the owner hands over, and how the other one gets at it.
//!
//! Memory of `cudaMalloc` has a handle of 64 bytes (CUDA's interprocess communication); memory of `cuMemCreate`, as NCCL's own
//! is, has a file descriptor, if it was created for that.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::copy::gpu::cuda::{Code, Handle, check, driver, loaded};

const POSIX_FILE_DESCRIPTOR: c_int = 1;
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
const LOCATION_DEVICE: c_int = 1;
const READ_AND_WRITE: c_int = 3;

/// Names an allocation of `cudaMalloc` in other processes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// Who may access a mapping, and how: the device of that ordinal, reading and writing.
#[repr(C)]
pub(crate) struct Access {
    /// Kind, and ordinal.
    location: [c_int; 2],
    flags: c_int,
}

driver! {
    /// What sharing memory needs of the driver.
    Sharing {
        init: c"cuInit" (c_uint);
        address_range: c"cuMemGetAddressRange_v2" (*mut u64, *mut usize, u64);
        ipc_get: c"cuIpcGetMemHandle" (*mut IpcHandle, u64);
        ipc_open: c"cuIpcOpenMemHandle_v2" (*mut u64, IpcHandle, c_uint);
        ipc_close: c"cuIpcCloseMemHandle" (u64);
        retain_allocation: c"cuMemRetainAllocationHandle" (*mut u64, *mut c_void);
        release: c"cuMemRelease" (u64);
        export: c"cuMemExportToShareableHandle" (*mut c_void, u64, c_int, c_ulonglong);
        import: c"cuMemImportFromShareableHandle" (*mut u64, *mut c_void, c_int);
        reserve: c"cuMemAddressReserve" (*mut u64, usize, usize, u64, c_ulonglong);
        free_reserved: c"cuMemAddressFree" (u64, usize);
        map: c"cuMemMap" (u64, usize, usize, u64, c_ulonglong);
        unmap: c"cuMemUnmap" (u64, usize);
        set_access: c"cuMemSetAccess" (u64, usize, *const Access, usize);
    }
}

/// What names an allocation in another process.
#[derive(Debug)]
pub(crate) enum Token {
    Ipc(IpcHandle),
    Descriptor(OwnedFd),
}

/// An allocation of another process, in this one.
#[derive(Debug)]
pub(crate) struct Imported {
    /// Where it is here.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    is_mapped: bool,
}

impl Sharing {
    /// Of the driver that this process has loaded; `None`: that is too old.
    pub(crate) fn of_driver() -> Option<&'static Self> {
        static TABLE: OnceLock<Option<Sharing>> = OnceLock::new();
        TABLE.get_or_init(|| Some(loaded()).filter(|library| !library.is_null()).and_then(Self::load)).as_ref()
    }

    /// Makes the driver ready, in a process that has not used it yet.
    pub(crate) fn start(&self) -> Result<(), Code> {
        // SAFETY: no memory is involved.
        check(unsafe { (self.init)(0) })
    }

    /// Start and bytes of the allocation that `addr` lies in. Inside a context.
    pub(crate) fn allocation(&self, addr: u64) -> Result<(u64, u64), Code> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: writes one value each.
        check(unsafe { (self.address_range)(&raw mut base, &raw mut bytes, addr) })?;
        Ok((base, bytes as u64))
    }

    /// What names the allocation that starts at `base`. Inside a context.
    pub(crate) fn export(&self, base: u64) -> Result<Token, Code> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: writes one handle.
        if check(unsafe { (self.ipc_get)(&raw mut handle, base) }).is_ok() {
            return Ok(Token::Ipc(handle));
        }
        let (mut allocation, mut fd): (u64, c_int) = (0, -1);
        // SAFETY: writes one value each; what was retained is released.
        unsafe {
            check((self.retain_allocation)(&raw mut allocation, base as *mut c_void))?;
            let exported = (self.export)((&raw mut fd).cast(), allocation, POSIX_FILE_DESCRIPTOR, 0);
            (self.release)(allocation);
            check(exported)?;
        }
        // SAFETY: the driver has just opened it for us.
        Ok(Token::Descriptor(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The allocation of `bytes` that `token` names, on GPU `ordinal`, whose context this is inside of.
    pub(crate) fn import(&self, token: &Token, bytes: u64, ordinal: u32) -> Result<Imported, Code> {
        let mut at = 0;
        match token {
            Token::Ipc(handle) => {
                // SAFETY: writes one value.
                check(unsafe { (self.ipc_open)(&raw mut at, *handle, LAZY_ENABLE_PEER_ACCESS) })?;
            }
            Token::Descriptor(fd) => {
                let mut allocation = 0;
                let fd = fd.as_raw_fd() as usize as Handle;
                // SAFETY: writes one value.
                check(unsafe { (self.import)(&raw mut allocation, fd, POSIX_FILE_DESCRIPTOR) })?;
                let mapped = self.map_all(bytes as usize, allocation, ordinal);
                // SAFETY: imported here, and not used any more: a mapping keeps it alive.
                unsafe { (self.release)(allocation) };
                at = mapped?;
            }
        }
        Ok(Imported { at, bytes, is_mapped: matches!(token, Token::Descriptor(_)) })
    }

    /// Maps `bytes` of `allocation`; where.
    fn map_all(&self, bytes: usize, allocation: u64, ordinal: u32) -> Result<u64, Code> {
        let access = Access { location: [LOCATION_DEVICE, ordinal as c_int], flags: READ_AND_WRITE };
        let mut at = 0;
        // SAFETY: writes one value.
        check(unsafe { (self.reserve)(&raw mut at, bytes, 0, 0, 0) })?;
        // SAFETY: an address range that was reserved here, so that nobody else uses it; given back unless it is mapped.
        unsafe {
            let mapped = check((self.map)(at, bytes, 0, allocation, 0)).and_then(|()| {
                check((self.set_access)(at, bytes, &raw const access, 1)).inspect_err(|_| {
                    (self.unmap)(at, bytes);
                })
            });
            mapped.map(|()| at).inspect_err(|_| {
                (self.free_reserved)(at, bytes);
            })
        }
    }

    /// Gives back what was imported. Inside the context. Nothing copies from or to it any more.
    pub(crate) fn give_back(&self, imported: &Imported) {
        let Imported { at, bytes, is_mapped } = *imported;
        // SAFETY: imported by this table, and given back once.
        unsafe {
            if is_mapped {
                (self.unmap)(at, bytes as usize);
                (self.free_reserved)(at, bytes as usize);
            } else {
                (self.ipc_close)(at);
            }
        }
    }
}
