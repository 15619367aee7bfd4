//! libnccl.so.2 of a release: where it is in its package, and the check that a file is one.

use std::path::Path;

use crate::error::{Error, Result};
use crate::nccl::elf;
use crate::nccl::release::{NcclRelease, STOCK_SYMBOL};
use crate::nccl::shared_object::SharedObject;

/// The name of the library.
pub(super) const FILE: &str = "libnccl.so.2";
/// Where the library lies inside the wheel.
pub(super) const INSIDE: &str = "nvidia/nccl/lib/libnccl.so.2";

/// Checks that the file is one of [`RELEASES`](super::release::RELEASES) with the built-in IB transport's symbol in it, and says which.
///
/// # Errors
/// [`Error::Io`], [`Error::Load`], [`Error::Symbol`] or [`Error::Refused`] if it is none of them.
pub fn verify(path: &Path) -> Result<NcclRelease> {
    let path =
        std::fs::canonicalize(path).map_err(|source| Error::io(format!("cannot open {}", path.display()), source))?;
    elf::local_symbol(&path, STOCK_SYMBOL)?;
    SharedObject::open(&path)?.release()
}

/// As [`verify`]; an error unless it is `release`.
pub(super) fn verify_as(path: &Path, release: NcclRelease) -> Result<()> {
    let found = verify(path)?;
    if found == release {
        return Ok(());
    }
    Err(Error::Refused(format!("{} is NCCL {found}, not {release}", path.display())))
}

/// How a user provides the library of `release` without pip.
pub(super) fn by_hand(release: NcclRelease) -> String {
    let option =
        if release == NcclRelease::DEFAULT { "pass --nccl PATH, set FERRITE_NCCL=PATH" } else { "pass its path" };
    format!(
        "to provide it by hand, take {INSIDE} out of the wheel of {} and {option}, or put it at \
         ~/.cache/ferrite/nccl-{release}/{FILE}",
        release.package()
    )
}
