//! The command line of softrnic: runs programs on it, and changes the network while they run.

mod change;
mod env;
mod faithful;
mod find;
mod library;
mod provider;
mod run;
mod stat;
// The plugin's own, which says which build this is.
#[allow(unreachable_pub)]
#[path = "../../../src/version.rs"]
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::find::{Failure, print};
use find::{to_change, to_look_at};

/// A software RDMA device for tests: run programs on it, and control its network while they run.
///
/// Exit status: 0 done, 1 failed, 2 wrong usage, nothing to do it on, or output that cannot be
/// written; `run` has the program's.
#[derive(Debug, Parser)]
#[command(name = "softrnic", version = version::text(), arg_required_else_help = true)]
struct Cli {
    /// Name of the fabric; otherwise that of SOFTRNIC_FABRIC
    ///
    /// Without either, `run` and `env` make a new fabric, `stat` takes the only one in use, and
    /// commands that change something take the only one of this terminal session.
    #[arg(long, global = true, value_name = "NAME")]
    fabric: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Options>),
    Env(Box<env::Options>),
    Port(change::Port),
    Gid(change::Gid),
    Fail(change::Fail),
    Inject(change::Inject),
    Stat(stat::Options),
    Clean(find::Options),
    /// Copies GPU memory for the process that has started it, by SOFTRNIC_GPU_HELPER
    #[command(hide = true)]
    GpuHelper(run::HelperOptions),
    /// Prints a script that completes this command line in a shell
    Completions(pages::Completions),
    /// Writes the man pages of this program into a folder
    #[command(hide = true)]
    Man(pages::Man),
}

fn main() -> ExitCode {
    let done = Cli::try_parse().map_err(Failure::from).and_then(|cli| cli.execute());
    done.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}

impl Cli {
    fn execute(&self) -> Result<(), Failure> {
        let fabric = self.fabric.as_deref();
        match &self.command {
            Command::Run(options) => Err(run::run(options, fabric)),
            Command::Env(options) => options.show(fabric),
            Command::Port(port) => port.apply(&to_change(fabric)?),
            Command::Gid(gid) => gid.apply(&to_change(fabric)?),
            Command::Fail(fail) => fail.apply(&to_change(fabric)?),
            Command::Inject(inject) if inject.is_question() => inject.list(&to_look_at(fabric)?),
            Command::Inject(inject) => inject.apply(&to_change(fabric)?),
            Command::Stat(options) => options.show(&to_look_at(fabric)?),
            Command::Clean(options) => options.clean(fabric),
            Command::GpuHelper(options) => options.serve(),
            Command::Completions(wanted) => print(&wanted.text(&Self::command())),
            Command::Man(wanted) => wanted.write(Self::command()).map_err(Failure::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use testkit::documented::{Documented, commands};

    use super::Cli;

    #[test]
    fn each_command_that_a_page_shows_is_understood() {
        let documented = commands("softrnic");
        assert!(documented.iter().filter(|shown| shown.whole).count() > 8, "{documented:?}");
        for Documented { place, arguments, whole } in &documented {
            // What may be left out is in brackets. In a sentence a command may stand without what
            // it has to have.
            let words = arguments.iter().map(|word| word.trim_matches(['[', ']']));
            let parsed = Cli::try_parse_from(std::iter::once("softrnic").chain(words));
            let problem = parsed.err().filter(clap::Error::use_stderr);
            let known = || Cli::command().find_subcommand(&arguments[0]).is_some();
            let right = if *whole { problem.is_none() } else { problem.is_none() || known() };
            assert!(
                right,
                "{place}: {arguments:?}: {}",
                problem.map(|words| words.to_string()).unwrap_or_default()
            );
        }
    }
}
