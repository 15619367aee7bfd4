//! Anonymous memory pages for registration.
//!
//! libibverbs marks registered pages so that forked children do not inherit them. So nothing else
//! may share such a page.

use crate::error::{Error, Result, errno};

/// An anonymous mapping, zeroed at first.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: *mut u8,
    pub(super) bytes: usize,
}

impl Mapping {
    /// Maps `bytes`, rounded up to whole pages. All pages are allocated at once: a card pins them
    /// anyway, and a page fault for each of them takes longer.
    ///
    /// # Errors
    /// The system has no memory.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
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
