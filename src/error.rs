//! The error type: the failed operation, its errno, the circumstances, and the class that NCCL
//! gets.

use crate::proto::Violation;
use crate::verbs::error::{Detail as VerbsDetail, Error as VerbsError, Kind};
use std::fmt;
use std::ops::Deref;

/// The class of an error, which chooses NCCL's result code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The operating system or the hardware failed.
    System,
    /// A bug, in Ferrite or in its caller.
    Internal,
    /// The caller passed something impossible.
    Argument,
    /// The user set something impossible.
    Usage,
    /// The peer has failed, or the path to it.
    Remote,
}

/// An error whose text says what to do. It is one pointer wide, so that results are returned in
/// registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Detail>);

/// The parts of an [`Error`]. Its text is `OPERATION failed: ERRNO in words`, or just the
/// operation, and then the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// Chooses NCCL's result code.
    pub class: Class,
    /// The failed operation and its object, as in `ibv_alloc_pd(mlx5_0)`; without an errno, what is
    /// wrong.
    pub operation: String,
    /// The system's error number, if there is one.
    pub errno: Option<i32>,
    /// Circumstances, likely causes and remedies, which follow in the text.
    pub context: String,
    /// Whether it was already logged, so that it is not logged again.
    pub is_logged: bool,
    /// Whether new queue pairs may help: the path, the port, the device or a queue pair has failed,
    /// not the memory or the program.
    pub is_recoverable: bool,
    /// Whether a completion may have been lost.
    pub loses_completion: bool,
    /// Whether the peer seems to have broken the protocol.
    pub is_violation: bool,
    /// The rail of the connection that it concerns, if any.
    pub rail: Option<u8>,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    #[cold]
    fn new(class: Class, operation: String, errno: Option<i32>) -> Self {
        Self(Box::new(Detail {
            class,
            operation,
            errno,
            context: String::new(),
            is_logged: false,
            is_recoverable: false,
            loses_completion: false,
            is_violation: false,
            rail: None,
        }))
    }

    /// A bug, in Ferrite or in its caller.
    pub fn internal(text: impl Into<String>) -> Self {
        Self::new(Class::Internal, text.into(), None)
    }

    /// The caller passed something impossible.
    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(Class::Argument, text.into(), None)
    }

    /// The user set something impossible.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Class::Usage, text.into(), None)
    }

    /// The peer has failed, or the path to it.
    pub fn remote(text: impl Into<String>) -> Self {
        Self::new(Class::Remote, text.into(), None)
    }

    /// The operating system or the hardware failed, without an errno.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new(Class::System, text.into(), None)
    }

    /// A system or library call failed with `errno`.
    pub fn os(operation: impl fmt::Display, errno: i32) -> Self {
        Self::new(Class::System, operation.to_string(), Some(errno))
    }

    /// A call that breaks the protocol is this process's own fault, not the peer's.
    #[cold]
    pub fn misuse(violation: Violation) -> Self {
        Self::internal(violation.into_text())
    }

    /// A call of the standard library failed.
    pub fn io(operation: impl fmt::Display, reason: &std::io::Error) -> Self {
        match reason.raw_os_error() {
            Some(errno) => Self::os(operation, errno),
            None => Self::system(format!("{operation} failed: {reason}")),
        }
    }

    /// Puts the task during which it happened before the operation.
    #[must_use]
    pub fn during(mut self, task: impl fmt::Display) -> Self {
        self.0.operation = format!("{task}: {}", self.0.operation);
        self
    }

    /// Adds a circumstance to the context.
    #[must_use]
    pub fn context(mut self, circumstance: impl fmt::Display) -> Self {
        self.0.context += &format!("; {circumstance}");
        self
    }

    /// Adds a hint, in parentheses, to the context.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.0.context += &format!(" ({hint})");
        self
    }

    /// Marks the error as already logged.
    #[must_use]
    pub fn logged(mut self) -> Self {
        self.0.is_logged = true;
        self
    }

    /// Marks the error as one that new queue pairs may help.
    #[must_use]
    pub fn recoverable(mut self) -> Self {
        self.0.is_recoverable = true;
        self
    }

    /// Notes that the error concerns rail `rail`.
    #[must_use]
    pub fn on_rail(mut self, rail: u8) -> Self {
        self.0.rail = Some(rail);
        self
    }

    /// The error of the `poll` before it if this is a violation: with a lost completion the peer
    /// seems to break the protocol.
    #[must_use]
    pub fn after_poll(self, poll: Option<&Self>) -> Self {
        match poll {
            Some(poll) if self.is_violation => {
                poll.clone().context("a received message is lost with a completion")
            }
            _ => self,
        }
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
        f.write_str(&self.0.context)
    }
}

impl std::error::Error for Error {}

impl From<Violation> for Error {
    #[cold]
    fn from(violation: Violation) -> Self {
        let mut error = Self::remote(format!("the peer broke the protocol: {violation}"));
        error.0.is_violation = true;
        error
    }
}

impl From<VerbsError> for Error {
    #[cold]
    #[inline(never)]
    fn from(error: VerbsError) -> Self {
        let VerbsDetail { kind, operation, errno, context } = error.into_detail();
        let class = if kind == Kind::Misuse { Class::Internal } else { Class::System };
        let mut error = Self::new(class, operation, errno);
        error.0.context = context;
        error.0.is_recoverable = matches!(kind, Kind::Device | Kind::Poll);
        error.0.loses_completion = kind == Kind::Poll;
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_task_operation_errno_and_context() {
        let error = Error::os("ibv_alloc_pd(x)", libc::ENOMEM)
            .hint("is it full?")
            .context("4 of 4")
            .during("opening x");
        assert_eq!(
            error.text(),
            "opening x: ibv_alloc_pd(x) failed: Cannot allocate memory (os error 12) (is it full?); 4 of 4"
        );
        assert_eq!((error.class, error.errno), (Class::System, Some(libc::ENOMEM)));
        assert_eq!(
            Error::remote("the peer has gone").context("later").text(),
            "the peer has gone; later"
        );
    }

    #[test]
    fn after_a_poll_that_has_failed_only_a_violation_is_its_consequence() {
        let poll = Error::os("ibv_poll_cq(x)", libc::EIO);
        let parsed = || crate::proto::handshake::Hello::parse(&[]);
        let violation = || Error::from(parsed().expect_err("no bytes"));
        let said = violation().after_poll(Some(&poll)).text();
        assert!(
            said.starts_with("ibv_poll_cq(x) failed: ")
                && said.ends_with(" is lost with a completion"),
            "{said}"
        );
        assert_eq!(violation().after_poll(None), violation());
        let memory = || Error::remote("local protection error");
        assert_eq!(memory().after_poll(Some(&poll)), memory());
    }

    #[test]
    fn an_error_of_a_lower_layer_keeps_its_text_and_says_whose_fault_it_is() {
        let broken = Error::from(crate::proto::handshake::Hello::parse(&[]).expect_err("no bytes"));
        assert!(broken.text().starts_with("the peer broke the protocol: "), "{broken}");
        assert_eq!(broken.class, Class::Remote);
        let device = Error::from(VerbsError::of_device("ibv_create_qp(x)", libc::EIO));
        assert_eq!(device.text(), "ibv_create_qp(x) failed: Input/output error (os error 5)");
        assert_eq!((device.class, device.is_recoverable), (Class::System, true));
        assert!(
            !Error::from(VerbsError::of_device("ibv_create_qp(x)", libc::ENOMEM)).is_recoverable
        );
    }

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }
}
