//! Memory that ends where the page ends, with nothing behind it.

use std::ptr;

const PAGE: usize = 4096;

/// A value of exactly `T`'s size; one byte beyond it is a SIGSEGV.
pub struct AtPageEnd<T> {
    base: *mut u8,
    value: *mut T,
}

impl<T: Copy> AtPageEnd<T> {
    pub fn new(value: T) -> Self {
        assert!(size_of::<T>() <= PAGE);
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping of two pages, of which the second becomes inaccessible.
        unsafe {
            let base = libc::mmap(
                ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                none,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.add(PAGE), PAGE, libc::PROT_NONE), 0);
            let at = base.cast::<u8>().add(PAGE - size_of::<T>()).cast::<T>();
            at.write_unaligned(value);
            Self { base: base.cast(), value: at }
        }
    }

    pub fn as_ptr(&self) -> *mut T {
        self.value
    }

    pub fn get(&self) -> T {
        // SAFETY: initialised in `new`.
        unsafe { self.value.read_unaligned() }
    }
}

impl<T> Drop for AtPageEnd<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.base.cast(), 2 * PAGE) };
    }
}
