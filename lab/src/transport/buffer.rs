//! Memory that a NIC reads and writes.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::slice;

use crate::error::{Error, Result};

/// Page-aligned, zeroed host memory, for registration with a transport.
///
/// A peer may write into it at any time between the posting of a receive and its completion. So
/// there is no reference to the bytes: they are copied in and out. Unmapped on drop; a
/// registration ([`crate::transport::comm::Region`]) keeps it alive.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this object alone and is only reached through raw copies; two
// threads that touch the same bytes at once are in the same position as the NIC is.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps `len` bytes (at least one page) and touches every page.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no memory left.
    pub fn new(len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)
    }

    /// Maps `len` bytes (at least one page) that take memory only when they are used: a NIC's
    /// driver, which pins the pages of a registration, uses all.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no addresses left.
    pub fn unused(len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0)
    }

    /// Maps `len` bytes of `file` from `offset`, a multiple of the page size; they hold what the
    /// file does.
    ///
    /// # Errors
    /// [`Error::Io`] if the file is shorter, or the system has no memory left.
    pub fn in_file(file: &File, offset: u64, len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd(), offset)
    }

    /// Maps `len` bytes whose pages are the same `period` bytes again and again, both multiples of
    /// the page size.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no addresses or no memory left.
    pub fn repeated(len: usize, period: usize) -> Result<Self> {
        let all = Self::unused(len)?;
        let once = Self::map(period, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)?;
        for at in (0..all.len).step_by(period) {
            let (place, size) = (all.address(at, 1)?, period.min(all.len - at));
            // SAFETY: `once` is shared memory of `period` bytes, which an old size of 0 duplicates;
            // the place is one of `all`'s own pages.
            let to = unsafe {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                libc::mremap(once.start.as_ptr().cast(), 0, size, flags, place)
            };
            if to == libc::MAP_FAILED {
                return Err(Error::last_os(format!("cannot map {size} bytes again")));
            }
        }
        Ok(all)
    }

    fn map(len: usize, flags: i32, descriptor: RawFd, offset: u64) -> Result<Self> {
        let len = len.max(1).next_multiple_of(4096);
        let offset = libc::off_t::try_from(offset)
            .map_err(|_| Error::Misuse("an offset past any file's end"))?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, descriptor, offset) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os(format!("cannot map {len} bytes")));
        }
        NonNull::new(start.cast())
            .map(|start| Self { start, len })
            .ok_or(Error::Misuse("mmap returned the null page"))
    }

    /// Its size in bytes, a multiple of the page size.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a buffer has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the byte at `offset`.
    ///
    /// # Errors
    /// [`Error::Misuse`] unless `offset + len` lies inside.
    pub fn address(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            // SAFETY: the offset lies inside the mapping, or one past its end.
            Some(end) if end <= self.len => Ok(unsafe { self.start.as_ptr().add(offset) }),
            _ => Err(Error::Misuse("a range lies outside its buffer")),
        }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::Misuse`] if they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let target = self.address(offset, bytes.len())?;
        // SAFETY: address() checked the range; the source is a live slice outside the mapping.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// A copy of `len` bytes from `offset`.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the range lies outside.
    pub fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        let source = self.address(offset, len)?;
        let mut copy = Vec::with_capacity(len);
        // SAFETY: address() checked the range; the target has just been allocated, with room for
        // `len` bytes, which are written before they count.
        unsafe {
            source.copy_to_nonoverlapping(copy.as_mut_ptr(), len);
            copy.set_len(len);
        }
        Ok(copy)
    }

    /// Sets `len` bytes from `offset` to `value`.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the range lies outside.
    pub fn set(&self, offset: usize, len: usize, value: u8) -> Result<()> {
        let target = self.address(offset, len)?;
        // SAFETY: address() checked the range.
        unsafe { target.write_bytes(value, len) };
        Ok(())
    }

    /// Lets `look` see the bytes in place.
    ///
    /// # Safety
    /// No receive into the range may be outstanding.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the range lies outside.
    pub unsafe fn with<T>(
        &self,
        offset: usize,
        len: usize,
        look: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let start = self.address(offset, len)?;
        // SAFETY: address() checked the range, the caller promises that no receive writes it now.
        Ok(look(unsafe { slice::from_raw_parts_mut(start, len) }))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the range was mapped in new() and is not used any more: the code that registered
        // it holds an Arc of this object.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
