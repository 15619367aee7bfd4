//! Removes what killed processes have left.

use clap::Args;
use ibverbs::control::{Fate, Found};

use crate::find::folder;
use crate::outcome::{Failure, print};

/// Names of fabrics that `softrnic run` makes begin so.
pub(crate) const RUN: &str = "softrnic-run-";

/// Removes the fabrics of this user whose processes have all been killed; says which, and which are in use
#[derive(Debug, Args)]
pub(crate) struct Options {}

impl Options {
    /// All, or the one that is named on the command line.
    pub(crate) fn clean(&self, fabric: Option<&str>) -> Result<(), Failure> {
        let dir = folder();
        let found = ibverbs::control::clean(&dir, |name| fabric.is_none_or(|fabric| fabric == name))?;
        if found.is_empty() {
            let which = fabric.map_or_else(String::new, |name| format!(" {name}"));
            return print(&format!("there is no fabric{which} in {}\n", dir.display()));
        }
        print(&found.iter().map(line).collect::<String>())?;
        let failed = found.iter().filter(|one| matches!(one.fate, Fate::Failed(_))).count();
        if failed == 0 { Ok(()) } else { Err(Failure::Failed(format!("{failed} of them could not be removed"))) }
    }
}

fn line(one: &Found) -> String {
    let fate = match &one.fate {
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
