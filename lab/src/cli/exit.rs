//! How a command ends, as an exit code.

use crate::error::{Error, Result};
use crate::report::verdict::Conclusion;
use crate::system::output;
use crate::system::output::write_stderr;

/// The exit code of a worker process that could not begin, and of a wrong command line.
pub const INVALID: i32 = 2;

/// What a shell makes of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// How a command ends that could be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All is right, or B is as good as A or better.
    Good,
    /// Something is wrong, or B is worse.
    Worse,
    /// A difference that must not be missed could have been.
    TooFew,
    /// The user did not want to wait; what there was has been told.
    Interrupted,
}

impl From<Conclusion> for Exit {
    fn from(conclusion: Conclusion) -> Self {
        match conclusion {
            Conclusion::Good => Self::Good,
            Conclusion::Worse => Self::Worse,
            Conclusion::Undecided => Self::TooFew,
        }
    }
}

/// For `--help`.
pub const TABLE: &str = "\
Exit codes:
  0    all is right; `compare`: B is as good as A or better
  1    something is wrong: a failed check, a wrong byte; `compare`: B is worse
  2    not valid: a wrong command line, or it could not be tried
  3    `compare`: undecided
  130  interrupted";

/// Says why, where it is not told yet; the exit code.
pub fn code(outcome: Result<Exit>) -> i32 {
    match outcome {
        Ok(Exit::Good) => 0,
        Ok(Exit::Worse) => 1,
        Ok(Exit::TooFew) => 3,
        Ok(Exit::Interrupted) | Err(Error::Interrupted) => {
            write_stderr(format_args!("ferrite: interrupted"));
            INTERRUPTED
        }
        // A child that the terminal interrupted as well, such as pip, is the consequence.
        Err(problem) if output::received() => {
            write_stderr(format_args!("ferrite: {problem}\nferrite: interrupted"));
            INTERRUPTED
        }
        Err(problem) if problem.is_wrong() => {
            write_stderr(format_args!("ferrite: {problem}"));
            1
        }
        Err(problem) => {
            write_stderr(format_args!("ferrite: {problem}"));
            INVALID
        }
    }
}
