//! What a fuzzer chooses the input of: schedules of both ends of a connection.
//!
//! `scripts/fuzz.py` chooses them; a test runs the inputs that are kept in `tests/fuzz/corpus`.

use crate::net::sim;
use crate::proto::fuzz::Target;
use crate::proto::random::Random;

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
        for input in testkit::corpus::kept_inputs(name).iter().step_by(16) {
            println!("{input:?}");
            target(input);
        }
    }
}
