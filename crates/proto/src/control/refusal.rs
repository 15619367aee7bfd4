//! Why a client of the port is refused.

use crate::violation::Violation;
use std::fmt;

/// A reason. Its text is the body of the Refuse frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A Hello with a token that no listener of this process has.
    UnknownToken,
    /// A Resume of a connection that this process does not have.
    UnknownConnection,
    /// The maximum number of clients wait for the listener.
    TooManyPending,
    /// A Hello with the secret of another stream.
    KnownSecret,
    /// The first frame is neither a Hello nor a Resume, or is invalid.
    Invalid(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownToken => {
                "no such listener: it has closed, or belongs to another job (wrong token)"
            }
            Self::UnknownConnection => {
                "no such connection: it has been closed, or belongs to another process"
            }
            Self::TooManyPending => "too many clients wait for this listener",
            Self::KnownSecret => "this hello was sent before",
            Self::Invalid(text) => text,
        })
    }
}

impl From<Violation> for Refusal {
    fn from(violation: Violation) -> Self {
        Self::Invalid(violation.to_string())
    }
}
