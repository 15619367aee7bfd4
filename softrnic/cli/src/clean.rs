//! Removes what killed processes have left.

use clap::Args;
use ibverbs::control::{Fate, Found};

use crate::find::folder;
use crate::outcome::{Failure, print};

/// Names of fabrics that `softrnic run` makes begin so.
pub(crate) const RUN: &str = "softrnic-run-";

/// Lists this user's fabrics in use, and those whose processes have all been killed; --all or --fabric removes the latter
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
        let found =
            if is_removed { ibverbs::control::clean(&dir, wanted)? } else { ibverbs::control::remains(&dir, wanted)? };
        if found.is_empty() {
            let which = fabric.map_or_else(String::new, |name| format!(" {name}"));
            return print(&format!("there is no fabric{which} in {}\n", dir.display()));
        }
        let is_one_dead = found.iter().any(|one| matches!(one.fate, Fate::Dead(_)));
        let advice =
            if is_one_dead { "softrnic clean --all removes the dead ones, --fabric NAME one of them\n" } else { "" };
        print(&(found.iter().map(line).collect::<String>() + advice))?;
        let failed = found.iter().filter(|one| matches!(one.fate, Fate::Failed(_))).count();
        if failed == 0 { Ok(()) } else { Err(Failure::Failed(format!("{failed} of them could not be removed"))) }
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
