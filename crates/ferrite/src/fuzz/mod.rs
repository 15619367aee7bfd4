//! What a fuzzer chooses the input of: files of statistics, which other processes write, and what the doctors of several hosts say to
//! each other.
//!
//! | file | what is in it |
//! |---|---|
//! | `stats` | what the commands do with files of statistics |
//!
//! Each target takes any bytes, and panics if what has to hold does not. `scripts/fuzz.py` has libFuzzer choose the bytes, with `cfg(fuzzing)`;
//! a test runs the inputs that are kept in `tests/fuzz/corpus`.

mod stats;

/// A target: it takes any bytes.
pub type Target = fn(&[u8]);

/// The targets, by name.
pub const TARGETS: [(&str, Target); 2] = [("stats", stats::target), ("doctor", crate::doctor::peers::fuzz::target)];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Each has reached something that none before had. In a file each has its length in front.
    #[test]
    fn files_and_words_of_doctors_that_are_kept_break_nothing() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus");
        for (name, target) in TARGETS {
            let packed = std::fs::read(corpus.join(name).with_extension("inputs")).expect("each target has inputs");
            let (mut rest, mut count) = (&packed[..], 0);
            while let Some((length, after)) = rest.split_first_chunk() {
                let (input, left) = after.split_at(u32::from_le_bytes(*length) as usize);
                println!("{name}: {input:?}");
                target(input);
                (rest, count) = (left, count + 1);
            }
            assert!(count > 10, "{name}: {count} inputs");
        }
    }

    #[test]
    fn any_bytes_are_an_input() {
        let mut random = fastrand::Rng::with_seed(1);
        for (_, target) in TARGETS {
            for length in 0..40 {
                target(&std::iter::repeat_with(|| random.u8(..)).take(length).collect::<Vec<_>>());
            }
        }
    }
}
