//! A breach of the protocol.

use std::fmt;

/// The peer has violated the protocol. The connection cannot continue. It is one pointer wide, so
/// that results travel in registers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::box_collection, reason = "a boxed str is two pointers wide")]
pub struct Violation(Box<String>);

impl Violation {
    /// A violation with the text of `tell`: out of line, so that it costs nothing where there is
    /// none.
    #[cold]
    #[inline(never)]
    pub(crate) fn new(tell: impl FnOnce() -> String) -> Self {
        Self(Box::new(tell()))
    }

    /// What the peer did.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The text, by value.
    #[cold]
    pub fn into_text(self) -> String {
        *self.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Violation {}

/// Shorthand for a [`Violation`] with a formatted text.
macro_rules! violation {
    ($($arg:tt)*) => { $crate::violation::Violation::new(move || format!($($arg)*)) };
}
pub(crate) use violation;
