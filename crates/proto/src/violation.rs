//! A breach of the protocol.

use crate::error::Error;
use std::fmt;

/// The peer did something that the protocol does not allow. The connection cannot go on. It is one pointer wide, so that
/// results travel in registers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::box_collection, reason = "a boxed str is two pointers wide")]
pub struct Violation(Box<String>);

impl Violation {
    /// A violation with the text that `tell` composes: out of line, so that it costs nothing where there is none.
    #[cold]
    #[inline(never)]
    pub(crate) fn new(tell: impl FnOnce() -> String) -> Self {
        Self(Box::new(tell()))
    }

    /// What the peer did.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The error for a violation that is the caller's fault and not the peer's.
    #[cold]
    pub fn into_misuse(self) -> Error {
        Error::internal(*self.0)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Violation {}

impl From<Violation> for Error {
    #[cold]
    fn from(violation: Violation) -> Self {
        Self::remote(format!("the peer broke the protocol: {violation}"))
    }
}

/// Shorthand for a [`Violation`] with a formatted text.
macro_rules! violation {
    ($($arg:tt)*) => { $crate::proto::violation::Violation::new(move || format!($($arg)*)) };
}
pub(crate) use violation;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_did_is_in_each_text() {
        let violation = violation!("{} stripes", 3);
        assert_eq!(violation.to_string(), "3 stripes");
        assert!(Error::from(violation).to_string().contains("the peer broke the protocol: 3 stripes"));
    }
}
