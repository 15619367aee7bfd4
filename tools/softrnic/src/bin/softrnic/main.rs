//! The command line of softrnic: runs programs on it, and plays with the network while they run.

mod change;
mod faithful;
mod inject;
mod run;
mod stat;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ibverbs::control::Network;

/// A software RDMA device for tests: run programs on it, and control its network while they run.
#[derive(Debug, Parser)]
#[command(name = "softrnic", version, arg_required_else_help = true)]
struct Cli {
    /// Name of the fabric. Without it: SOFTRNIC_FABRIC, or the only one in use; `run` makes a fresh one
    #[arg(long, global = true, value_name = "NAME")]
    fabric: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Options>),
    Port(change::Port),
    Gid(change::Gid),
    Fail(change::Fail),
    Inject(inject::Inject),
    Stat(stat::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let fabric = cli.fabric.as_deref();
    let done = match &cli.command {
        Command::Run(options) => run::run(options, fabric),
        Command::Port(port) => find(fabric).and_then(|network| port.apply(&network)),
        Command::Gid(gid) => find(fabric).and_then(|network| gid.apply(&network)),
        Command::Fail(fail) => find(fabric).and_then(|network| fail.apply(&network)),
        Command::Inject(inject) => find(fabric).and_then(|network| inject.apply(&network)),
        Command::Stat(options) => find(fabric).map(|network| options.show(&network.report())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("softrnic: {what}");
            ExitCode::FAILURE
        }
    }
}

/// A variable of the environment that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The fabric that is meant.
fn find(name: Option<&str>) -> Result<Network, String> {
    let dir = PathBuf::from(variable("SOFTRNIC_SHM_DIR").unwrap_or_else(|| "/dev/shm".to_owned()));
    let chosen = name.map(str::to_owned).or_else(|| variable("SOFTRNIC_FABRIC"));
    let name = match chosen {
        Some(name) => name,
        None => only_one(&dir)?,
    };
    Network::open(&dir, &name).map_err(|error| error.to_string())
}

fn only_one(dir: &std::path::Path) -> Result<String, String> {
    let mut names = Network::names(dir).map_err(|error| error.to_string())?;
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        (None, _) => Err(format!("no fabric is in use in {}", dir.display())),
        (Some(last), false) => Err(format!("choose one with --fabric: {}, {last}", names.join(", "))),
    }
}
