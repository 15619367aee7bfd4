//! The one error type: what failed, where, and what to do about it; and the class that NCCL is told.

use std::fmt;

/// Which of NCCL's result codes an error becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The operating system or the hardware failed.
    System,
    /// A bug, here or in the caller.
    Internal,
    /// The caller passed something impossible.
    Argument,
    /// The user set something impossible.
    Usage,
    /// The peer or the way to it is gone.
    Remote,
}

/// An error with a text for the person who has to act on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What NCCL is told.
    pub class: Class,
    /// What a person is told: the operation, the object, the values, the likely cause.
    pub text: String,
    /// Whether it has been reported already, so that another line would tell nothing new.
    pub quiet: bool,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A bug, here or in the caller.
    pub fn internal(text: impl Into<String>) -> Self {
        Self { class: Class::Internal, text: text.into(), quiet: false }
    }

    /// The caller passed something impossible.
    pub fn argument(text: impl Into<String>) -> Self {
        Self { class: Class::Argument, text: text.into(), quiet: false }
    }

    /// The user set something impossible.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { class: Class::Usage, text: text.into(), quiet: false }
    }

    /// The peer or the way to it is gone.
    pub fn remote(text: impl Into<String>) -> Self {
        Self { class: Class::Remote, text: text.into(), quiet: false }
    }

    /// The operating system or the hardware failed.
    pub fn system(text: impl Into<String>) -> Self {
        Self { class: Class::System, text: text.into(), quiet: false }
    }

    /// A system or library call failed with `errno`.
    pub fn os(operation: impl fmt::Display, errno: i32) -> Self {
        let reason = std::io::Error::from_raw_os_error(errno);
        Self { class: Class::System, text: format!("{operation} failed: {reason}"), quiet: false }
    }

    /// A call of the standard library failed.
    pub fn io(operation: impl fmt::Display, reason: &std::io::Error) -> Self {
        Self { class: Class::System, text: format!("{operation} failed: {reason}"), quiet: false }
    }

    /// The same error, said to have happened during `what`.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Self {
        Self { text: format!("{what}: {}", self.text), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<crate::proto::Violation> for Error {
    fn from(v: crate::proto::Violation) -> Self {
        Self::remote(format!("the peer broke the protocol: {v}"))
    }
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
