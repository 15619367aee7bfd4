//! Pages of memory of one's own.
//!
//! libibverbs marks registered pages as not to be inherited by forked children, and nothing else may share that fate.

use crate::error::{Error, Result, errno};

/// Pages that nothing else lies on, zeroed at first.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: *mut u8,
    pub(super) bytes: usize,
}

impl Mapping {
    /// At least `bytes` of them.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::os(format_args!("mmap of {bytes} bytes"), errno()));
        }
        Ok(Self { base: base.cast(), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this size, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
