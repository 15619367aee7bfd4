//! Memory that outlives the processes that use it, so that all pairs of a run move data in the same pages.
//!
//! Where a buffer's pages lie in physical memory decides which of them share places in a cache. A process that maps fresh
//! memory gets what the one before it gave back, so its speed depends on who ran before it. With the same pages for all,
//! that is the same for all.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::transport::buffer::Buffer;

/// The pages of one rank, as the process that starts the pairs holds them: an anonymous file in memory, which is empty
/// until a process of the pair takes some.
#[derive(Debug, Clone)]
pub struct Pages(Arc<OwnedFd>);

impl Pages {
    /// Of both ranks.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives none.
    pub fn of_both_ranks() -> Result<[Self; 2]> {
        Ok([Self::new()?, Self::new()?])
    }

    fn new() -> Result<Self> {
        let name = c"ferrite-pages";
        // SAFETY: memfd_create, which glibc has from 2.27 on only: the name is a C string; the result is a descriptor of this process, or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
        let descriptor = RawFd::try_from(descriptor).unwrap_or(-1);
        if descriptor < 0 {
            return Err(Error::last_os("cannot make a file in memory"));
        }
        // SAFETY: the descriptor has just been made, and nothing else owns it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(descriptor) })))
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The pages of one rank, inside the process that uses them.
#[derive(Debug)]
pub(crate) struct PageAllocator {
    file: File,
    /// Bytes that buffers of this process lie in.
    taken: u64,
}

impl PageAllocator {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self { file: descriptor.into(), taken: 0 }
    }

    /// A buffer in pages that no other buffer of this process lies in: the same pages for the same calls in the same
    /// order. They hold what was left in them.
    pub(crate) fn buffer(&mut self, len: usize) -> Result<Buffer> {
        let start = self.taken;
        let end = start + len.max(1).next_multiple_of(4096) as u64;
        let size = self.file.metadata().map_err(|e| Error::io("cannot read the size of a file in memory", e))?.len();
        if size < end {
            self.file.set_len(end).map_err(|e| Error::io(format!("cannot make room for {end} bytes in memory"), e))?;
        }
        self.taken = end;
        Buffer::in_file(&self.file, start, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_finds_the_same_pages_in_the_same_order() {
        let [pages, other] = Pages::of_both_ranks().expect("memory");
        let share = |pages: &Pages| PageAllocator::new(pages.0.try_clone().expect("a descriptor"));
        let (mut first, mut second) = (share(&pages), share(&pages));
        let buffers = |share: &mut PageAllocator| [5000, 1].map(|len| share.buffer(len).expect("memory"));
        let [mine, beside] = buffers(&mut first);
        let [theirs, _] = buffers(&mut second);
        mine.write(4999, b"x").expect("inside");
        beside.write(0, b"y").expect("inside");
        assert_eq!(theirs.read(4999, 1).expect("inside"), b"x");
        let [unrelated, _] = buffers(&mut share(&other));
        assert_eq!(unrelated.read(4999, 1).expect("inside"), [0]);
    }
}
