//! Which fabric is meant.

use std::path::{Path, PathBuf};

use ibverbs::control::Network;

use crate::outcome::Failure;
use crate::variable::variable;

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

/// A fabric to change: without a name, the only one that has been started in this terminal session, for all others may
/// be another user's work.
pub(crate) fn to_change(name: Option<&str>) -> Result<Network, Failure> {
    find(name, "or SOFTRNIC_FABRIC (this terminal session has none, or several)", Network::names_in_session)
}

type Candidates = fn(&Path) -> Result<Vec<String>, ibverbs::control::Error>;

/// The fabric `name`, or the only candidate; `or_how` goes on after "name the fabric with --fabric".
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
