//! NCCL's contract for a transport, point by point (docs/conformance.md): those points that need no
//! device which can be broken or looked into, and less than ten seconds.

use crate::guest::Case;
use lab::error::Result;

/// `points` are tried in every run, `deep` ones where there is time for all.
fn keeps(case: &Case, points: &str, deep: &str) -> Result<()> {
    let points = if crate::is_deep() { format!("{points},{deep}") } else { points.to_owned() };
    let printed = case.ferrite("check", &["--jobs", "1", "--only", &points], &[])?;
    assert!(printed.contains(" on the devices of this machine: "), "{printed}");
    assert!(printed.contains(", 0 failed, 0 skipped"), "{printed}");
    Ok(())
}

/// Loading, properties, connections, peers, registration, ends.
pub(crate) fn connections(case: &Case) -> Result<()> {
    keeps(case, "5,12,13,21,22,25,31,48,53", "1,2,4,6,7,8,14,15,16,17,18,19,23,27,49,56")
}

/// Sizes, groups, order, threads.
pub(crate) fn messages(case: &Case) -> Result<()> {
    keeps(case, "35,39,40,43,44", "37,38,42,47")
}
