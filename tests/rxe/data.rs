//! Every byte over one device and two.

use crate::guest::Case;
use ferrite::error::Result;

pub(crate) fn one_device(case: &Case) -> Result<()> {
    let printed = case.ferrite("verify", &["--over", "single"], &[("NCCL_IB_HCA", "=rxe0")])?;
    assert!(printed.contains("on rxe0 and rxe0\n"));
    Ok(())
}
