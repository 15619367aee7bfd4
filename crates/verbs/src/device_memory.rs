//! Memory that a device, a card or a GPU, writes behind the processor's back: how a word of it is read, and what keeps reads in their order.
//! `tests/models` has a model checker's in its place.

/// A word that a device writes.
pub(super) type Word = u64;

/// What `word` has now.
///
/// # Safety
/// It is aligned, and lives.
#[inline(always)]
pub(super) unsafe fn load(word: *const Word) -> u64 {
    // SAFETY: by the caller; volatile, since the device writes it behind the compiler's back.
    unsafe { word.read_volatile() }
}

/// Keeps later loads behind earlier ones: those of data behind that of the word, or flag, by which a device says that the data is there. A fence
/// of Rust orders what processors write, in the inner shareable domain of 64-bit ARM, which a device need not belong to.
#[inline(always)]
pub fn read_barrier() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, for loads, in the outer shareable domain.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}
