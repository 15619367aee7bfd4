//! Which pages of the area for receive rings are in use: a bit each.
//!
//! A bit is set before its ring is entered in a queue pair, and cleared after the ring has been taken out. So a process that is
//! killed in between leaves a bit too many and never one too few; [`RingPages::rebuild`] clears those. All under the control lock.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::shm::file::ControlLock;
use crate::shm::layout::{PAGE, RINGS_AT, RINGS_BYTES};

const WORDS: usize = RINGS_BYTES / PAGE / 64;

/// The bits, in the shared file.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct RingPages([AtomicU64; WORDS]);

/// The pages of `bytes` from `at` on in the file, by number.
fn pages(at: usize, bytes: usize) -> Range<usize> {
    let first = at.saturating_sub(RINGS_AT) / PAGE;
    first..(first + bytes.div_ceil(PAGE)).min(WORDS * 64)
}

impl RingPages {
    fn is_used(&self, page: usize) -> bool {
        self.0[page / 64].load(Relaxed) & 1 << (page % 64) != 0
    }

    /// The first gap of `bytes`: where it begins in the file.
    pub(crate) fn find(&self, _control: &ControlLock<'_>, bytes: usize) -> Option<usize> {
        let wanted = bytes.div_ceil(PAGE);
        let (mut page, mut free) = (0, 0);
        while page < WORDS * 64 && free < wanted {
            if page.is_multiple_of(64) && self.0[page / 64].load(Relaxed) == u64::MAX {
                (page, free) = (page + 64, 0);
                continue;
            }
            free = if self.is_used(page) { 0 } else { free + 1 };
            page += 1;
        }
        (free == wanted).then(|| RINGS_AT + (page - wanted) * PAGE)
    }

    /// `bytes` from `at` on are in use.
    pub(crate) fn take(&self, _control: &ControlLock<'_>, at: usize, bytes: usize) {
        for page in pages(at, bytes) {
            self.0[page / 64].fetch_or(1 << (page % 64), Relaxed);
        }
    }

    /// They are free again.
    pub(crate) fn give_back(&self, _control: &ControlLock<'_>, at: usize, bytes: usize) {
        for page in pages(at, bytes) {
            self.0[page / 64].fetch_and(!(1 << (page % 64)), Relaxed);
        }
    }

    /// Only `rings` are in use.
    pub(crate) fn rebuild(&self, control: &ControlLock<'_>, rings: impl Iterator<Item = (usize, usize)>) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
        rings.for_each(|(at, bytes)| self.take(control, at, bytes));
    }
}
