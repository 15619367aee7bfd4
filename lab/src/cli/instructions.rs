//! The arguments of `ferrite instructions`, and what it prints.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::exit::Exit;
use crate::error::{Error, Result};
use crate::instructions::Profile;
use crate::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Counts the instructions of the library itself and those that its calls into other libraries but libibverbs and its \
provider take. Prints \
one number: all of them, or with --messages those of one message. The file is written by valgrind --tool=callgrind \
--compress-strings=no --compress-pos=no --trace-children=yes ferrite solo ...; scripts/instructions.sh does so for both \
transports. With --locked it counts those of the library itself that have a lock prefix, xchg with memory, and mfence, on x86-64; \
valgrind needs --dump-instr=yes then.\n\n\
Exit code 0: counted; 2: a file is not understood, or has no instructions of the library.")]
pub(super) struct Instructions {
    /// What callgrind wrote
    file: PathBuf,
    /// The library: a part of its path, such as /libnccl-net.so
    #[arg(long, value_name = "TEXT")]
    library: String,
    /// What callgrind wrote in a run with fewer messages; its instructions are subtracted
    #[arg(long, value_name = "FILE")]
    minus: Option<PathBuf>,
    /// Divide by so many messages: those that one run had more than the other
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Print a line for each function: instructions, calls, instructions per call, name
    #[arg(long)]
    functions: bool,
    /// Count the locked instructions of the library instead; none is no error
    #[arg(long)]
    locked: bool,
}

impl Instructions {
    pub(super) fn run(self) -> Result<Exit> {
        let mut profile = self.read(&self.file)?;
        if let Some(fewer) = &self.minus {
            profile = profile.minus(&self.read(fewer)?);
        }
        if profile.total() <= 0 && !self.locked {
            return Err(Error::Unreadable(format!(
                "no instructions of {} were seen",
                self.library
            )));
        }
        let text = if self.functions { functions(&profile) } else { String::new() };
        let total = profile.total() as f64 / self.messages.unwrap_or(1) as f64;
        let digits = if self.locked { 2 } else { 0 };
        output::write_stdout(&format!("{text}{total:.digits$}\n")).map(|()| Exit::Good)
    }

    fn read(&self, file: &Path) -> Result<Profile> {
        let failed = |problem| Error::io(format!("cannot read {}", file.display()), problem);
        // Names of functions need not be UTF-8.
        let bytes = std::fs::read(file).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes);
        let profile = match self.locked {
            false => Profile::read(&text, &self.library)?,
            true => Profile::read_locked(&text, &self.library)?,
        };
        if profile.0.is_empty() {
            return Err(Error::Unreadable(format!(
                "{} has no instructions of {}",
                file.display(),
                self.library
            )));
        }
        Ok(profile)
    }
}

/// A line for each function, the most costly first.
fn functions(profile: &Profile) -> String {
    let mut costs: Vec<_> = profile.0.iter().filter(|(_, cost)| cost.instructions != 0).collect();
    costs.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.instructions));
    let mut text = format!("{:>14} {:>12} {:>9}  function\n", "instructions", "calls", "per call");
    for (name, cost) in costs {
        let each = if cost.calls == 0 {
            "-".into()
        } else {
            format!("{:.1}", cost.instructions as f64 / cost.calls as f64)
        };
        text += &format!("{:>14} {:>12} {each:>9}  {name}\n", cost.instructions, cost.calls);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::Cost;

    #[test]
    fn the_most_costly_function_comes_first() {
        let cost = |instructions, calls| Cost { instructions, calls };
        let profile = Profile(
            [("a".into(), cost(10, 4)), ("b".into(), cost(30, 0)), ("c".into(), cost(0, 1))].into(),
        );
        let text = functions(&profile);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines, [["30", "0", "-", "b"], ["10", "4", "2.5", "a"]]);
    }
}
