//! NCCL's contract for a transport, point by point (docs/conformance.md): those points that need no device which can be
//! broken or looked into, and less than ten seconds.

use crate::guest::Case;
use ferrite::error::Result;

fn keeps(case: &Case, points: &str) -> Result<()> {
    let printed = case.ferrite("check", &["--only", points], &[])?;
    assert!(printed.contains(" on the devices of this machine: "), "{printed}");
    assert!(printed.contains(", 0 failed, 0 skipped"), "{printed}");
    Ok(())
}

/// Loading, properties, connections, peers, registration, ends.
pub(crate) fn connections(case: &Case) -> Result<()> {
    keeps(case, "1,2,4,5,6,7,8,12,13,14,15,16,17,18,19,21,22,23,25,27,31,48,49,53,56")
}

/// Sizes, groups, order, threads.
pub(crate) fn messages(case: &Case) -> Result<()> {
    keeps(case, "35,37,38,39,40,42,43,44,47")
}
