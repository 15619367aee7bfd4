//! A stretch of one thread's work in which nothing is allocated and the kernel is not called, or a
//! report of what was.
//!
//! A test program that uses [`watch`] has [`count_allocations!`](crate::count_allocations) at its
//! root: its allocation functions stand in for the C library's, for every library in the process.
//! System calls are caught by the kernel's syscall user dispatch, which the thread switches on and
//! off by writing a byte.

use crate::skip::Missing;
use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// What happened meanwhile, in the whole thread: all libraries and the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// How many blocks of memory were taken or given back.
    pub allocations: u64,
    /// The number of the first system call. There may have been others after it.
    pub system_call: Option<i32>,
}

const ALLOW: u8 = 0;
const BLOCK: u8 = 1;
const NONE: i32 = -1;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
}
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static SELECTOR: AtomicU8 = AtomicU8::new(ALLOW);
static CALLED: AtomicI32 = AtomicI32::new(NONE);
/// One thread at a time: the counters are the process's.
static WATCHING: Mutex<()> = Mutex::new(());

/// Whether the kernel can catch system calls.
pub fn is_supported() -> Result<(), Missing> {
    arm().map_err(|error| Missing(format!("syscall user dispatch: {error}")))
}

/// Does `work`, which must not depend on time. Its first system call is not made.
pub fn watch<T>(work: impl FnOnce() -> T) -> Result<(T, Seen), Missing> {
    let _only = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
    is_supported()?;
    let ((), seen) = observe(|| drop(black_box(Box::new(1_u8))));
    assert_eq!(seen.allocations, 2, "the test program needs testkit::count_allocations!()");
    Ok(observe(work))
}

fn observe<T>(work: impl FnOnce() -> T) -> (T, Seen) {
    ALLOCATIONS.store(0, Ordering::Relaxed);
    CALLED.store(NONE, Ordering::Relaxed);
    COUNTING.set(true);
    SELECTOR.store(BLOCK, Ordering::SeqCst);
    let result = work();
    SELECTOR.store(ALLOW, Ordering::SeqCst);
    COUNTING.set(false);
    let called = CALLED.load(Ordering::Relaxed);
    let system_call = (called != NONE).then_some(called);
    (result, Seen { allocations: ALLOCATIONS.load(Ordering::Relaxed), system_call })
}

/// Has this thread's system calls go through the selector.
fn arm() -> io::Result<()> {
    const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
    const PR_SYS_DISPATCH_ON: usize = 1;
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        let handler: extern "C" fn(i32, *const Caught, *mut c_void) = caught;
        // SAFETY: all zeros is a valid value; the handler does what a signal handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSYS, &raw const action, null_mut());
        }
    });
    // SAFETY: the selector lives as long as the process; no range of addresses is exempt.
    match unsafe {
        libc::prctl(
            PR_SET_SYSCALL_USER_DISPATCH,
            PR_SYS_DISPATCH_ON,
            0_usize,
            0_usize,
            SELECTOR.as_ptr(),
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The beginning of the kernel's `siginfo_t` for SIGSYS.
#[repr(C)]
struct Caught {
    _signal: [i32; 4],
    _address: u64,
    number: i32,
}

/// Notes the call, which was not made, and lets the following ones through.
extern "C" fn caught(_signal: i32, info: *const Caught, _context: *mut c_void) {
    SELECTOR.store(ALLOW, Ordering::SeqCst);
    // SAFETY: the kernel's.
    let number = unsafe { (*info).number };
    let _ = CALLED.compare_exchange(NONE, number, Ordering::Relaxed, Ordering::Relaxed);
}

/// For [`count_allocations!`](crate::count_allocations): a block was taken or given back.
#[doc(hidden)]
pub fn count_one() {
    if COUNTING.try_with(Cell::get) == Ok(true) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Defines the C library's allocation functions in the program that uses this macro. Each
/// counts and then calls the C library's own.
#[macro_export]
macro_rules! count_allocations {
    () => {
        mod counted_allocations {
            use std::ffi::c_void;
            use $crate::no_alloc_no_syscall::count_one;

            unsafe extern "C" {
                fn __libc_malloc(size: usize) -> *mut c_void;
                fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
                fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
                fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
                fn __libc_free(block: *mut c_void);
            }

            #[unsafe(no_mangle)]
            extern "C" fn malloc(size: usize) -> *mut c_void {
                count_one();
                // SAFETY: the C library's own.
                unsafe { __libc_malloc(size) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn calloc(number: usize, size: usize) -> *mut c_void {
                count_one();
                // SAFETY: the C library's own.
                unsafe { __libc_calloc(number, size) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
                count_one();
                // SAFETY: the caller's block.
                unsafe { __libc_realloc(block, size) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
                count_one();
                // SAFETY: the C library's own.
                unsafe { __libc_memalign(alignment, size) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
                memalign(alignment, size)
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn posix_memalign(
                place: *mut *mut c_void,
                alignment: usize,
                size: usize,
            ) -> i32 {
                /// `ENOMEM`
                const NO_MEMORY: i32 = 12;
                let block = memalign(alignment, size);
                if block.is_null() {
                    return NO_MEMORY;
                }
                // SAFETY: the caller's place.
                unsafe { *place = block };
                0
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn free(block: *mut c_void) {
                if !block.is_null() {
                    count_one();
                }
                // SAFETY: the caller's block.
                unsafe { __libc_free(block) }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::require;

    crate::count_allocations!();

    #[test]
    fn an_allocation_and_a_system_call_are_seen() {
        // SAFETY: it only asks.
        let ask = || unsafe { libc::getppid() };
        let (_, seen) = require!(watch(|| {
            drop(black_box(vec![1_u8]));
            ask()
        }));
        assert_eq!(seen, Seen { allocations: 2, system_call: Some(libc::SYS_getppid as i32) });
    }

    #[test]
    fn arithmetic_is_neither() {
        let (sum, seen) = require!(watch(|| (0..black_box(100)).sum::<u32>()));
        assert_eq!((sum, seen), (4950, Seen::default()));
    }
}
