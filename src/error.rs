//! The one error type: what failed, where, and what to do about it; and the class that NCCL is told.

use std::fmt;
use std::ops::{Deref, DerefMut};

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

/// An error with a text for the person who has to act on it. One pointer wide: results travel in registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Detail>);

/// What an [`Error`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
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
    #[cold]
    fn new(class: Class, text: String) -> Self {
        Self(Box::new(Detail { class, text, quiet: false }))
    }

    /// A bug, here or in the caller.
    pub fn internal(text: impl Into<String>) -> Self {
        Self::new(Class::Internal, text.into())
    }

    /// The caller passed something impossible.
    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(Class::Argument, text.into())
    }

    /// The user set something impossible.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Class::Usage, text.into())
    }

    /// The peer or the way to it is gone.
    pub fn remote(text: impl Into<String>) -> Self {
        Self::new(Class::Remote, text.into())
    }

    /// The operating system or the hardware failed.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new(Class::System, text.into())
    }

    /// A system or library call failed with `errno`.
    pub fn os(operation: impl fmt::Display, errno: i32) -> Self {
        let reason = std::io::Error::from_raw_os_error(errno);
        Self::new(Class::System, format!("{operation} failed: {reason}"))
    }

    /// A call of the standard library failed.
    pub fn io(operation: impl fmt::Display, reason: &std::io::Error) -> Self {
        Self::new(Class::System, format!("{operation} failed: {reason}"))
    }

    /// The same error, said to have happened during `what`.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

impl Deref for Error {
    type Target = Detail;
    fn deref(&self) -> &Detail {
        &self.0
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut Detail {
        &mut self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<crate::proto::Violation> for Error {
    #[cold]
    fn from(v: crate::proto::Violation) -> Self {
        Self::remote(format!("the peer broke the protocol: {v}"))
    }
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
