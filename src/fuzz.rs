//! What a fuzzer chooses the input of: schedules of both ends of a connection.
//!
//! `scripts/fuzz.py` chooses them; a test runs the inputs that are kept in `tests/fuzz/corpus`.

use crate::net::sim;
use crate::proto::random::Random;

/// A target: it takes any bytes, and panics if what has to hold does not.
pub type Target = fn(&[u8]);

/// The targets, by name.
pub const TARGETS: [(&str, Target); 1] =
    [("schedules", |bytes| sim::check(Random::from_bytes(bytes)))];

#[cfg(test)]
mod tests {
    use super::*;

    /// One in 16 of those that are kept.
    #[test]
    fn schedules_that_are_kept_break_nothing() {
        let [(name, target)] = TARGETS;
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus");
        let packed = std::fs::read(format!("{corpus}/{name}.inputs")).expect("there are inputs");
        let (mut rest, mut count) = (&packed[..], 0);
        while let Some((length, after)) = rest.split_first_chunk() {
            let (input, left) = after.split_at(u32::from_le_bytes(*length) as usize);
            if count % 16 == 0 {
                println!("{input:?}");
                target(input);
            }
            (rest, count) = (left, count + 1);
        }
        assert!(count > 10, "{count} inputs");
    }
}
