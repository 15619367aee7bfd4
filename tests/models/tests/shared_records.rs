//! The order in which the words of a clear-to-send are read while the peer's device writes them,
//! explored by a model checker: every order of the steps, and every value that the memory model
//! lets a load return. The source is the plugin's, with the checker's atomics in place of the
//! memory that a device writes. The device is a thread that stores the words in ascending order,
//! the last with release: which is what `crates/verbs/src/record.rs` says of it.

#![allow(unreachable_pub, missing_docs, reason = "a file of the plugin")]

/// In place of `crates/verbs/src/device_memory.rs`.
mod device_memory {
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    pub(super) type Word = AtomicU64;

    std::thread_local! {
        // Of the thread of a test, which runs all threads of the model.
        pub(super) static HAS_BARRIER: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
    }

    pub(super) unsafe fn load(word: *const Word) -> u64 {
        // SAFETY: by the caller.
        unsafe { &*word }.load(Ordering::Relaxed)
    }

    pub(super) fn read_barrier() {
        if HAS_BARRIER.get() {
            fence(Ordering::Acquire);
        }
    }
}

#[path = "../../../crates/verbs/src/record.rs"]
mod record;

use device_memory::Word;
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

/// As many words as a clear-to-send has.
const WORDS: usize = 4;

/// The words of the record that is written `round` times over; the last one is the round.
fn written(round: u64) -> [u64; WORDS] {
    std::array::from_fn(|word| if word == WORDS - 1 { round } else { 10 * round + word as u64 })
}

/// A device writes the record of round 1 over that of round 0. The reader looks twice, and reads
/// what it finds complete.
fn explore() {
    loom::model(|| {
        let memory: Arc<[Word; WORDS]> = Arc::new(written(0).map(Word::new));
        let device = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                for (place, value) in memory.iter().zip(written(1)).take(WORDS - 1) {
                    place.store(value, Ordering::Relaxed);
                }
                memory[WORDS - 1].store(1, Ordering::Release);
            })
        };
        let words = memory.as_ptr();
        for _ in 0..2 {
            // SAFETY: the memory lives, and is as long.
            let last = unsafe { record::last::<WORDS>(words) };
            if last == 1 {
                // SAFETY: as above.
                let found = unsafe { record::whole::<WORDS>(words, last) };
                assert_eq!(found, written(1), "a word is older than the last one");
            }
        }
        device.join().expect("it does not panic");
        // SAFETY: as above.
        let found = unsafe { record::whole(words, record::last::<WORDS>(words)) };
        assert_eq!(found, written(1));
    });
}

#[test]
fn a_record_whose_last_word_is_there_is_there() {
    explore();
}

/// That the checker would notice.
#[test]
#[should_panic(expected = "a word is older than the last one")]
fn without_the_barrier_older_words_are_read() {
    device_memory::HAS_BARRIER.set(false);
    explore();
}
