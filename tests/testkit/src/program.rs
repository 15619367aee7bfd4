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
///
/// # Panics
/// If it cannot be started.
#[track_caller]
pub fn run(command: &mut Command) -> Printed {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?} does not start: {e}"));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Printed { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs `command`, which has to end well: its standard output.
///
/// # Panics
/// With all that it printed, if it does not.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_outputs_and_the_status_are_kept() {
        let printed = run(&mut shell("echo out; echo err >&2; exit 3"));
        assert_eq!(
            (printed.status.code(), printed.stdout.as_str(), printed.stderr.as_str()),
            (Some(3), "out\n", "err\n")
        );
        assert_eq!(printed.into_parts().0, 3);
        assert_eq!(run(&mut shell("kill $$")).into_parts().0, -1);
        assert_eq!(stdout_of(&mut shell("echo out; echo err >&2")), "out\n");
    }

    #[test]
    #[should_panic(expected = "the reason")]
    fn a_program_that_fails_is_shown_with_what_it_printed() {
        stdout_of(&mut shell("echo the reason >&2; exit 1"));
    }
}
