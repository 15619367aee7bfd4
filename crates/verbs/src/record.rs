//! A record that a peer's RDMA WRITE fills while this process reads it. Its last word shows that it
//! is complete: that word is read first, and the others after a barrier. `tests/models` explores
//! that with a model checker.
//!
//! Requirements at both sides, for the words of one record, which never straddles a cache line:
//!
//! | side | what it does | why the last word is not seen before the others |
//! |---|---|---|
//! | the process that posts the write | fills the record, inline or in registered memory, and calls the driver | the driver has a barrier for stores between what the work request refers to and the doorbell (`udma_to_device_barrier`; 64-bit ARM: `dmb oshst`) |
//! | the card that writes | writes the bytes of a write in ascending address order, up to 64 bytes of a cache line in one PCIe write | the InfiniBand specification does not promise it; the cards do, and NCCL's own transport relies on it in the same place. PCIe keeps posted writes of one requester in order unless they have the relaxed-ordering attribute, which a region gets by `IBV_ACCESS_RELAXED_ORDERING` only: a ring is registered without |
//! | the processor that reads | loads the last word, has a barrier for loads, loads the others | x86-64 does not reorder loads; the barrier keeps the compiler from it. 64-bit ARM does reorder them, and the device is in the outer shareable domain: `dmb oshld`, which rdma-core calls `udma_from_device_barrier` |
//!
//! Polling the last word and reading the rest later changes nothing. The barrier is between the
//! successful load and the loads of the others, and still later loads, such as of a first half,
//! also follow it.

use super::device_memory::{Word, load, read_barrier};

/// The last of `WORDS` words.
///
/// # Safety
/// `words` points to that many aligned, live words.
#[inline(always)]
pub(super) unsafe fn last<const WORDS: usize>(words: *const Word) -> u64 {
    // SAFETY: by the caller.
    unsafe { load(words.add(WORDS - 1)) }
}

/// All of `WORDS` words. The last one was loaded as `last`, which shows that the record is
/// complete.
///
/// # Safety
/// As for [`last`].
#[inline(always)]
pub(super) unsafe fn whole<const WORDS: usize>(words: *const Word, last: u64) -> [u64; WORDS] {
    // The others have arrived, and must not be loaded before the last one.
    read_barrier();
    let mut record = [last; WORDS];
    for (i, word) in record.iter_mut().enumerate().take(WORDS - 1) {
        // SAFETY: by the caller.
        *word = unsafe { load(words.add(i)) };
    }
    record
}
