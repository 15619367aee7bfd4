//! Tests that cannot run on this machine: they end well after a line that says what is missing, by
//! which `scripts/summary.py` counts them as skipped, not as passed.
//!
//! ```ignore
//! #[test]
//! fn the_plugin_is_an_elf_file() {
//!     let plugin = require!(testkit::dist::plugin());
//!     assert_eq!(std::fs::read(plugin).expect("it is readable")[..4], *b"\x7fELF");
//! }
//! ```

use std::fmt::{Display, Formatter, Result as Format};
use std::io::Write;

/// What a test needs and this machine has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub String);

impl Missing {
    /// It, in words that also say how to get it.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl Display for Missing {
    fn fmt(&self, f: &mut Formatter<'_>) -> Format {
        f.write_str(&self.0)
    }
}

/// Says `skipped: WHAT IS MISSING` past the capture of the test program's output: also where tests
/// are run without cargo-nextest a person reads it.
pub fn skipped(missing: impl Display) {
    // One line, whatever the text: what comes behind a line end would not be counted.
    let line = format!("skipped: {}\n", missing.to_string().trim().replace('\n', " "));
    // A test must not fail because nobody reads its output.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// What a test function can return.
pub trait Outcome {
    /// The test ends well.
    fn ended() -> Self;
}

impl Outcome for () {
    fn ended() {}
}

impl<E> Outcome for Result<(), E> {
    fn ended() -> Self {
        Ok(())
    }
}

/// The value of a `Result<T, Missing>` (or of anything else whose error says what is missing); the
/// test that this stands in ends as skipped if it is an error.
#[macro_export]
macro_rules! require {
    ($needed:expr) => {
        match $needed {
            Ok(needed) => needed,
            Err(missing) => {
                $crate::skip::skipped(missing);
                return $crate::skip::Outcome::ended();
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use crate::side;

    fn needs(what: Result<u8, Missing>, reached: &mut bool) -> Result<(), String> {
        let value = require!(what);
        *reached = true;
        if value == 1 { Ok(()) } else { Err("another value".into()) }
    }

    #[test]
    fn a_test_resumes_with_what_it_has_and_ends_well_without_it() {
        let mut reached = false;
        assert_eq!(needs(Ok(2), &mut reached), Err("another value".into()));
        assert!(reached);
    }

    /// In a process of its own, so that the line does not count for this test.
    #[test]
    fn what_is_missing_is_said_in_one_line_and_the_test_does_not_resume() {
        side::enter(|_, _| {
            let mut reached = false;
            assert_eq!(needs(Err(Missing::new("a card\nfor PCI")), &mut reached), Ok(()));
            assert!(!reached);
        });
        let (process, _peer) = Process::start(0, &[]);
        let ended = process.ended();
        assert!(ended.is_body_done(), "{ended}");
        assert_eq!(ended.missing(), ["a card for PCI"], "{ended}");
    }
}
