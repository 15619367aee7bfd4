//! Ends with something outstanding whose counters stand still. Sampled times do not show them; a
//! watcher checks every second. It recovers nothing:
//! [`crate::net::data::health::DeadPathDetector`] does that.

use super::file::{Words, add};
use super::layout::{OPEN, record};
use std::sync::atomic::Ordering;

/// Looks at a record; `now` is the time in nanoseconds. Returns whether its end is stalled.
pub(super) fn check_record(words: &Words, now: u64) -> bool {
    let of = |at: usize| words[at].load(Ordering::Relaxed);
    if words[record::STATE].load(Ordering::Acquire) & 0xff != OPEN {
        return false;
    }
    let (begun, done) = (of(record::BEGUN), of(record::DONE));
    let refused = of(record::REFUSED_AT);
    let progress = begun.wrapping_add(done).wrapping_add(of(record::FLUSHES_DONE));
    let is_waiting =
        begun != done || refused == begun || of(record::FLUSHES) != of(record::FLUSHES_DONE);
    let has_moved = progress != of(record::PROGRESS_SEEN);
    if has_moved || !is_waiting || of(record::STILL_SINCE) == 0 {
        words[record::PROGRESS_SEEN].store(progress, Ordering::Relaxed);
        words[record::STILL_SINCE].store(if is_waiting { now } else { 0 }, Ordering::Relaxed);
        words[record::STALL].store(0, Ordering::Relaxed);
        return true;
    }
    let still = now.saturating_sub(of(record::STILL_SINCE));
    if of(record::STALL) == 0 {
        add(&words[record::STALLS], 1);
    }
    words[record::STALL].store(still.max(1), Ordering::Relaxed);
    if still > of(record::LONGEST_STALL) {
        words[record::LONGEST_STALL].store(still, Ordering::Relaxed);
    }
    true
}
