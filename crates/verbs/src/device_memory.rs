//! Memory that a device (a card or a GPU) writes without the processor: how to read a word of it,
//! and how to keep reads in order. `tests/models` replaces this file by a model checker's.

/// A word that a device writes.
pub(super) type Word = u64;

/// Reads `word`.
///
/// # Safety
/// `word` is aligned and live.
#[inline(always)]
pub(super) unsafe fn load(word: *const Word) -> u64 {
    // SAFETY: the caller's contract; volatile, since the device writes it without the compiler's
    // knowledge.
    unsafe { word.read_volatile() }
}

/// Keeps later loads after earlier ones: loads of data after that of the word, or flag, that
/// announces the data. A Rust fence orders writes by processors, in the inner shareable domain of
/// 64-bit ARM, to which a device need not belong.
#[inline(always)]
pub fn read_barrier() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a load barrier in the outer shareable domain.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}
