//! libnccl.so.2 of a release, in a cache outside of the build tree.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::nccl::fetch;
use crate::nccl::release::NcclRelease;
use crate::nccl::stock_library::{FILE, by_hand, verify, verify_as};

/// Finds the stock library to compare with: `given`, else `$FERRITE_NCCL`, else as [`fetched`] for
/// [`NcclRelease::DEFAULT`]. Whatever is found is verified.
///
/// # Errors
/// [`Error::Io`], [`Error::Load`], [`Error::Symbol`] or [`Error::Refused`] if the file is none of [`RELEASES`](super::release::RELEASES);
/// else as [`fetched`].
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    let named = given
        .map(Path::to_path_buf)
        .or_else(|| std::env::var_os("FERRITE_NCCL").filter(|value| !value.is_empty()).map(PathBuf::from));
    match named {
        Some(path) => verify(&path).map(|_| path),
        None => fetched(NcclRelease::DEFAULT),
    }
}

/// The library of `release` in the cache; fetches it with pip if it is not there.
///
/// # Errors
/// [`Error::Refused`] if the cached file is not usable; [`Error::Fetch`] if it could not be fetched, with pip's last
/// words and the way to provide it by hand.
pub fn fetched(release: NcclRelease) -> Result<PathBuf> {
    let cached = cached(release)?;
    if cached.exists() {
        verify_as(&cached, release).map_err(|problem| {
            Error::Refused(format!(
                "the cached {} is not usable ({problem}); delete it to have it fetched again",
                cached.display()
            ))
        })?;
    } else {
        fetch::fetch(&cached, release)?;
    }
    Ok(cached)
}

/// Where the library of `release` is kept: `${XDG_CACHE_HOME:-~/.cache}/ferrite/nccl-2.21.5/libnccl.so.2`.
///
/// # Errors
/// [`Error::Fetch`] if there is no place for a cache.
pub fn cached(release: NcclRelease) -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or_else(|| {
            Error::Fetch(format!(
                "no place to keep {FILE}: neither XDG_CACHE_HOME nor HOME is set; {}",
                by_hand(release)
            ))
        })?;
    Ok(base.join("ferrite").join(format!("nccl-{release}")).join(FILE))
}
