//! Parts of this program that run in a process of their own, since what they call may crash or wait
//! for ever.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::system::host;
use crate::system::output;

/// How often a wait looks whether the user has interrupted the program.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of standard error that are kept.
const KEPT: u64 = 64 << 10;

/// What such a process has printed, and how it ended.
#[derive(Debug, Clone, Default)]
pub struct Printed {
    /// The lines of its standard output.
    pub lines: Vec<String>,
    /// The lines of its standard error, as far as they are kept.
    pub log: Vec<String>,
    /// Why it did not end well.
    pub failure: Option<String>,
    /// Its exit code, if it ended by itself.
    pub code: Option<i32>,
}

/// Runs this program with `words` and the environment `env`, as [`run_command`] does.
pub fn run(words: &[String], env: &BTreeMap<String, String>, silence: Duration) -> Printed {
    match std::env::current_exe() {
        Ok(program) => {
            let mut command = Command::new(program);
            command.args(words).env_clear().envs(env);
            run_command(command, silence)
        }
        Err(problem) => not_started(&problem),
    }
}

/// Runs a command to its end. It is ended when it prints nothing for so long, or when the user
/// interrupts this program.
pub fn run_command(mut command: Command, silence: Duration) -> Printed {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: between fork and exec there is one system call.
    unsafe { command.pre_exec(host::die_with_parent) };
    match command.spawn() {
        Ok(child) => follow(child, silence),
        Err(problem) => not_started(&problem),
    }
}

fn not_started(problem: &std::io::Error) -> Printed {
    Printed { failure: Some(format!("it could not be started: {problem}")), ..Printed::default() }
}

fn follow(mut child: Child, silence: Duration) -> Printed {
    let (sender, receiver) = mpsc::channel();
    let stdout = child.stdout.take();
    let lines = std::thread::spawn(move || {
        for line in
            stdout.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()).map_while(Result::ok)
        {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let stderr = child.stderr.take();
    let log = std::thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut pipe) = stderr {
            // What follows is read and dropped, so that the process does not wait for its reader.
            pipe.by_ref().take(KEPT).read_to_end(&mut kept).unwrap_or_default();
            std::io::copy(&mut pipe, &mut std::io::sink()).unwrap_or_default();
        }
        String::from_utf8_lossy(&kept).lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let mut printed = Printed::default();
    let mut last = Instant::now();
    let is_late = loop {
        match receiver.recv_timeout(LOOK) {
            Ok(line) => {
                printed.lines.push(line);
                last = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) if last.elapsed() > silence || output::received() => {
                break true;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    if is_late {
        child.kill().unwrap_or_default();
    }
    let status = child.wait();
    // Both threads end with the process, unless something that it started keeps its output open.
    if lines.is_finished() || !is_late {
        lines.join().unwrap_or_default();
        printed.log = log.join().unwrap_or_default();
    }
    printed.code = status.as_ref().ok().and_then(ExitStatus::code).filter(|_| !is_late);
    printed.failure = match status {
        _ if is_late => Some(format!("nothing for {}", host::seconds(silence))),
        Ok(status) if status.success() => None,
        Ok(status) => Some(ending(status)),
        Err(problem) => Some(problem.to_string()),
    };
    printed
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with code {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        (None, None) => "it ended".into(),
    }
}

impl Printed {
    /// The failure with the last line of the log.
    pub fn words(&self) -> String {
        let failure = self.failure.clone().unwrap_or_else(|| "it printed nothing".into());
        self.log
            .iter()
            .rev()
            .find(|line| !line.trim().is_empty())
            .map_or_else(|| failure.clone(), |last| format!("{failure}; its last line: {last}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, silence: Duration) -> Printed {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        follow(command.spawn().expect("a shell"), silence)
    }

    #[test]
    fn a_process_that_says_nothing_is_ended() {
        let printed = shell("echo one; exec sleep 1000", Duration::from_millis(300));
        assert_eq!(printed.lines, ["one"]);
        assert!(printed.failure.is_some_and(|failure| failure.contains("nothing for")));
    }

    #[test]
    fn a_process_that_fails_is_told_by_its_end_and_its_last_words() {
        let long = Duration::from_secs(100);
        assert_eq!(
            shell("echo a >&2; echo b >&2; exit 7", long).words(),
            "it ended with code 7; its last line: b"
        );
        assert_eq!(shell("kill -9 $$", long).words(), "signal 9 ended it");
        assert_eq!(shell("echo fine", long).failure, None);
    }
}
