//! Which fabric is meant.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ibverbs::control::{Error, Fate, Found, Network};

/// A variable of the environment that is not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The folder where fabrics are.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(variable("SOFTRNIC_SHM_DIR").unwrap_or_else(|| "/dev/shm".to_owned()))
}

/// The fabric of that name, or else the one that the environment names.
pub(crate) fn named(name: Option<&str>) -> Option<String> {
    name.map(str::to_owned).or_else(|| variable("SOFTRNIC_FABRIC"))
}

/// A fabric to look at: without a name, the only one in use.
pub(crate) fn to_look_at(name: Option<&str>) -> Result<Network, Failure> {
    find(name, "or SOFTRNIC_FABRIC", Network::names)
}

/// A fabric to change: without a name, the only one that has been started in this terminal session,
/// for all others may be another user's work.
pub(crate) fn to_change(name: Option<&str>) -> Result<Network, Failure> {
    find(
        name,
        "or SOFTRNIC_FABRIC (this terminal session has none, or several)",
        Network::names_in_session,
    )
}

type Candidates = fn(&Path) -> Result<Vec<String>, Error>;

/// The fabric `name`, or the only candidate; `or_how` goes on after "name the fabric with
/// --fabric".
fn find(name: Option<&str>, or_how: &str, candidates: Candidates) -> Result<Network, Failure> {
    let dir = folder();
    let name = match named(name) {
        Some(name) => name,
        None => only_one(candidates(&dir)?).ok_or_else(|| choose(&dir, or_how))?,
    };
    Ok(Network::open(&dir, &name)?)
}

fn only_one(mut names: Vec<String>) -> Option<String> {
    names.pop().filter(|_| names.is_empty())
}

/// Asks for a name, and lists those that there are.
fn choose(dir: &Path, or_how: &str) -> Failure {
    let place = dir.display();
    let names = match Network::names(dir) {
        Ok(names) => names,
        Err(error) => return error.into(),
    };
    Failure::Refused(if names.is_empty() {
        format!("no fabric is in use in {place}")
    } else {
        format!("name the fabric with --fabric {or_how}; in use in {place}: {}", names.join(", "))
    })
}

/// Why a command is not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was tried, and failed: status 1. A sentence.
    Failed(String),
    /// It is wrong, there is nothing to try it on, or what it has to tell cannot be written: status
    /// 2. A sentence.
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
        if matches!(error, Error::System(..) | Error::Failed(_)) {
            Self::Failed(what)
        } else {
            Self::Refused(what)
        }
    }
}

/// Prints `text`. A reader that has gone, or a full disk, is a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::Refused(unwritable(&error)))
}

fn unwritable(error: &impl fmt::Display) -> String {
    format!("cannot write to standard output: {error}")
}

/// Names of fabrics that `softrnic run` makes begin so.
pub(crate) const RUN: &str = "softrnic-run-";

/// Lists this user's fabrics in use, and those whose processes have all been killed; --all or
/// --fabric removes the latter
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Remove all of them
    #[arg(long, conflicts_with = "dry_run")]
    all: bool,
    /// Remove nothing, even with --fabric
    #[arg(long)]
    dry_run: bool,
}

impl Options {
    /// All, or the one that is named on the command line.
    pub(crate) fn clean(&self, fabric: Option<&str>) -> Result<(), Failure> {
        let dir = folder();
        let wanted = |name: &str| fabric.is_none_or(|fabric| fabric == name);
        let is_removed = !self.dry_run && (self.all || fabric.is_some());
        let found = if is_removed {
            ibverbs::control::clean(&dir, wanted)?
        } else {
            ibverbs::control::remains(&dir, wanted)?
        };
        if found.is_empty() {
            let which = fabric.map_or_else(String::new, |name| format!(" {name}"));
            return print(&format!("there is no fabric{which} in {}\n", dir.display()));
        }
        let is_one_dead = found.iter().any(|one| matches!(one.fate, Fate::Dead(_)));
        let advice = if is_one_dead {
            "softrnic clean --all removes the dead ones, --fabric NAME one of them\n"
        } else {
            ""
        };
        print(&(found.iter().map(line).collect::<String>() + advice))?;
        let failed = found.iter().filter(|one| matches!(one.fate, Fate::Failed(_))).count();
        if failed == 0 {
            Ok(())
        } else {
            Err(Failure::Failed(format!("{failed} of them could not be removed")))
        }
    }
}

fn line(one: &Found) -> String {
    let fate = match &one.fate {
        Fate::Dead(bytes) => format!("dead, {} KiB", bytes >> 10),
        Fate::Removed(bytes) => format!("removed, {} KiB", bytes >> 10),
        Fate::InUse => "in use".to_owned(),
        Fate::Failed(error) => format!("failed: {error}"),
    };
    format!("{}: {fate}\n", one.name)
}

/// Before a run: what runs before it have left. What cannot be removed is no obstacle.
pub(crate) fn forget_old_runs() {
    let _ = ibverbs::control::clean(&folder(), |name| name.starts_with(RUN));
}
