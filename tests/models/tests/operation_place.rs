//! A place of the table of NCCL's operations, explored by a model checker: every order of the
//! threads' steps, and every value that the memory model lets a load return. The source is the
//! plugin's, with the checker's atomics in place of the processor's.

// The source is larger than what is explored.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "a file of the plugin")]

/// In place of `src/net/operations/sync.rs`.
mod sync {
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[path = "../../../src/net/operations/place.rs"]
mod place;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use place::{FILLED, Place};

fn place() -> Arc<Place> {
    Arc::new(Place { state: AtomicU64::new(0), words: [0; 3].map(AtomicU64::new) })
}

/// Operation `ordinal` has words that belong together.
fn words(ordinal: u64) -> [u64; 3] {
    [1, 2, 3].map(|word| 10 * ordinal + word)
}

/// What a reader is given is one operation's, and whole, though the place is used again meanwhile.
#[test]
fn a_reader_is_given_no_mixture_of_two_operations() {
    loom::model(|| {
        let place = place();
        assert!(place.fill(0, 1, words(1)));
        let writer = {
            let place = Arc::clone(&place);
            thread::spawn(move || {
                place.end(1);
                assert!(place.fill(place.state(), 2, words(2)), "nobody else takes it");
            })
        };
        if let Some((state, read)) = place.read() {
            assert_eq!(read, words(state >> 2));
        }
        writer.join().expect("the writer ends");
        assert_eq!(place.read(), Some((2 << 2 | FILLED, words(2))));
    });
}

/// Two threads that find a place free do not both have it, and the end of an operation that has
/// lost its place ends no other one.
#[test]
fn a_place_is_given_to_one_of_two_operations() {
    loom::model(|| {
        let place = place();
        let begin = |ordinal: u64| {
            let place = Arc::clone(&place);
            move || place.fill(0, ordinal, words(ordinal))
        };
        let other = thread::spawn(begin(2));
        let is_first = begin(1)();
        let is_other = other.join().expect("the other one ends");
        assert!(is_first != is_other, "{is_first} {is_other}");
        let (has, has_not) = if is_first { (1, 2) } else { (2, 1) };
        place.end(has_not);
        assert_eq!(place.read(), Some((has << 2 | FILLED, words(has))));
    });
}
