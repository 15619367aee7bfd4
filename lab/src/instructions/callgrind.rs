//! The costs of one library in a file that valgrind's callgrind wrote.
//!
//! A library's cost is that of its own instructions and the inclusive cost of its calls into other libraries (memcpy,
//! malloc, ...) apart from libibverbs. It is read from the file itself: callgrind_annotate drops what was inlined from
//! another source file. The file has to be written with `--compress-strings=no --compress-pos=no`.

use std::collections::BTreeMap;

use super::format::{self, CostLine};
use crate::error::Result;

/// The library whose cost is not the transport's: the device and its provider.
const DEVICE_LIBRARY: &str = "libibverbs";

/// What one function costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Instructions of its own and of its calls into other libraries.
    pub(crate) instructions: i64,
    /// How often it was called.
    pub(crate) calls: i64,
}

/// The costs of a library by function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile(pub(crate) BTreeMap<String, Cost>);

impl Profile {
    /// Reads `text`; a library is one whose path contains `library`.
    ///
    /// # Errors
    /// [`crate::error::Error::Unreadable`] if the text is no output of callgrind's, or is compressed.
    pub(crate) fn read(text: &str, library: &str) -> Result<Self> {
        let mut profile = Self::default();
        format::read(text, |line| profile.add(line, library))?;
        Ok(profile)
    }

    fn add(&mut self, line: &CostLine<'_>, library: &str) {
        let is_own = |object: &str| object.contains(library);
        let counts = match line.call {
            None => true,
            Some(call) if is_own(call.object) => {
                self.0.entry(call.function.into()).or_default().calls += call.count;
                false
            }
            Some(call) => !call.object.contains(DEVICE_LIBRARY),
        };
        if counts && is_own(line.object) {
            self.0.entry(line.function.into()).or_default().instructions += line.instructions;
        }
    }

    /// All instructions of the library.
    pub(crate) fn total(&self) -> i64 {
        self.0.values().map(|cost| cost.instructions).sum()
    }

    /// What this profile has more than `other`, by function; what it has less is negative.
    pub(crate) fn minus(mut self, other: &Self) -> Self {
        for (name, cost) in &other.0 {
            let more = self.0.entry(name.clone()).or_default();
            more.instructions -= cost.instructions;
            more.calls -= cost.calls;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library `b` with two functions; `isend` calls `post` in the same library, memcpy in libc, and libibverbs.
    const SAMPLE: &str = "\
# callgrind format
version: 1
positions: line
events: Ir

ob=/x/ferrite
fl=main.rs
fn=main
1 500
cob=/x/libb.so
cfn=isend
calls=3 10
2 900

ob=/x/libb.so
fl=send.rs
fn=isend
10 60
11 30
fi=inlined.rs
7 9
fe=send.rs
cfn=post
calls=3 20
12 120
cob=/lib/libc.so.6
cfi=memcpy.c
cfn=memcpy
calls=3 1
13 45
cob=/lib/libibverbs.so.1
cfn=ibv_post_send
calls=3 1
14 10000

fn=post
20 120
";

    #[test]
    fn own_instructions_and_calls_into_other_libraries_are_counted_by_function() {
        let profile = Profile::read(SAMPLE, "/libb.so").expect("a file of callgrind's");
        let isend = Cost { instructions: 60 + 30 + 9 + 45, calls: 3 };
        let post = Cost { instructions: 120, calls: 3 };
        assert_eq!(profile.0, BTreeMap::from([("isend".into(), isend), ("post".into(), post)]));
        assert_eq!(profile.total(), 264);
        assert_eq!(Profile::read(SAMPLE, "/libz.so").map(|profile| profile.total()).ok(), Some(0));
    }

    #[test]
    fn a_difference_has_what_one_run_has_more() {
        let more = Profile::read(&SAMPLE.replace("20 120", "20 200").replace("calls=3 20", "calls=5 20"), "/libb.so");
        let difference = more.expect("a file").minus(&Profile::read(SAMPLE, "/libb.so").expect("a file"));
        assert_eq!(difference.0["post"], Cost { instructions: 80, calls: 2 });
        assert_eq!(difference.total(), 80);
    }
}
