//! Programs that are run to their end.

use std::fmt::{Display, Formatter, Result as Format};
use std::process::{Command, ExitStatus};

/// How a program ended and what it printed.
#[derive(Debug, Clone)]
pub struct Printed {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs `command` to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Printed {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?} does not start: {e}"));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Printed { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs `command`, which has to end well: its standard output.
#[track_caller]
pub fn stdout_of(command: &mut Command) -> String {
    let printed = run(command);
    assert!(printed.status.success(), "{command:?}: {printed}");
    printed.stdout
}

impl Printed {
    /// Exit code (-1: it was killed), standard output, standard error.
    #[must_use]
    pub fn into_parts(self) -> (i32, String, String) {
        (self.status.code().unwrap_or(-1), self.stdout, self.stderr)
    }
}

impl Display for Printed {
    fn fmt(&self, f: &mut Formatter<'_>) -> Format {
        let Self { status, stdout, stderr } = self;
        write!(f, "{status}\n{stdout}\n{stderr}")
    }
}
