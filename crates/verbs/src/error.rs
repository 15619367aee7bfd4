//! Why a call failed.

use std::fmt;
use std::ops::Deref;

/// What has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A bug in the caller: no call of libibverbs was made.
    Misuse,
    /// The operating system, the driver or libibverbs.
    System,
    /// The path, the port, the device or a queue pair: new queue pairs may work.
    Device,
    /// A poll of a completion queue: a completion may be lost. New queue pairs may work.
    Poll,
}

/// An error whose text names the call and its object. It is one pointer wide, so that results are
/// returned in registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Detail>);

/// The parts of an [`Error`]. Its text is `OPERATION failed: ERRNO in words`, or just the
/// operation, and then the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// What has failed.
    pub kind: Kind,
    /// The failed operation and its object, as in `ibv_alloc_pd(mlx5_0)`; without an errno, what is
    /// wrong.
    pub operation: String,
    /// The system's error number, if there is one.
    pub errno: Option<i32>,
    /// Likely causes and remedies, which follow in the text.
    pub context: String,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    #[cold]
    fn new(kind: Kind, operation: String, errno: Option<i32>) -> Self {
        Self(Box::new(Detail { kind, operation, errno, context: String::new() }))
    }

    /// A bug in the caller.
    pub(crate) fn misuse(text: impl Into<String>) -> Self {
        Self::new(Kind::Misuse, text.into(), None)
    }

    /// The system failed, without an errno.
    pub(crate) fn system(text: impl Into<String>) -> Self {
        Self::new(Kind::System, text.into(), None)
    }

    /// A system or library call failed with `errno`.
    pub(crate) fn os(operation: impl fmt::Display, errno: i32) -> Self {
        Self::new(Kind::System, operation.to_string(), Some(errno))
    }

    /// A call executed by a device failed with `errno`. `EIO` means that the device does not work:
    /// it may soon report its loss, and can be reopened later.
    pub fn of_device(operation: impl fmt::Display, errno: i32) -> Self {
        let kind = if errno == libc::EIO { Kind::Device } else { Kind::System };
        Self::new(kind, operation.to_string(), Some(errno))
    }

    /// A queue of a device failed with `errno`.
    pub(crate) fn of_queue(operation: impl fmt::Display, errno: i32) -> Self {
        Self::new(Kind::Device, operation.to_string(), Some(errno))
    }

    /// A poll of a completion queue of `device` failed.
    #[cold]
    pub(crate) fn of_poll(device: &str) -> Self {
        Self::new(Kind::Poll, format!("ibv_poll_cq({device})"), Some(libc::EIO))
            .hint("has the completion queue overrun?")
    }

    /// Adds a circumstance to the error's context.
    #[must_use]
    pub(crate) fn context(mut self, circumstance: impl fmt::Display) -> Self {
        self.0.context += &format!("; {circumstance}");
        self
    }

    /// Adds a hint, in parentheses, to the error's context.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.0.context += &format!(" ({hint})");
        self
    }

    /// Its parts.
    pub fn into_detail(self) -> Detail {
        *self.0
    }

    /// The whole text.
    pub fn text(&self) -> String {
        self.to_string()
    }
}

impl Deref for Error {
    type Target = Detail;
    fn deref(&self) -> &Detail {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        if let Some(errno) = self.errno {
            write!(f, " failed: {}", std::io::Error::from_raw_os_error(errno))?;
        }
        f.write_str(&self.context)
    }
}

impl std::error::Error for Error {}

/// The calling thread's errno.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
