//! How a command ends: what is printed, and the exit status.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use ibverbs::control::Error;

/// Why a command is not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was tried, and failed: status 1. A sentence.
    Failed(String),
    /// It is wrong, there is nothing to try it on, or what it has to tell cannot be written: status 2. A sentence.
    Refused(String),
    /// The command line is wrong, or asks for help.
    Usage(clap::Error),
}

const FAILED: u8 = 1;
const REFUSED: u8 = 2;

impl Failure {
    /// Prints the failure for the user; the exit status.
    pub(crate) fn report(self) -> ExitCode {
        let (what, status) = match self {
            Self::Failed(what) => (what, FAILED),
            Self::Refused(what) => (what, REFUSED),
            Self::Usage(usage) if usage.use_stderr() => {
                // To standard error; where that cannot be written, nothing can be printed.
                let _ = usage.print();
                return ExitCode::from(REFUSED);
            }
            Self::Usage(help) => match help.print().and_then(|()| std::io::stdout().flush()) {
                Ok(()) => return ExitCode::SUCCESS,
                Err(error) => (unwritable(&error), REFUSED),
            },
        };
        let _ = writeln!(std::io::stderr(), "softrnic: {what}");
        ExitCode::from(status)
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::Usage(error)
    }
}

impl From<pages::CannotWrite> for Failure {
    fn from(error: pages::CannotWrite) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let what = error.to_string();
        if matches!(error, Error::System(..) | Error::Failed(_)) { Self::Failed(what) } else { Self::Refused(what) }
    }
}

/// Prints `text`. A reader that has gone, or a full disk, is a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| Failure::Refused(unwritable(&error)))
}

fn unwritable(error: &impl fmt::Display) -> String {
    format!("cannot write to standard output: {error}")
}
