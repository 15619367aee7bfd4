//! Which libnccl.so.2 is taken where a release is asked for.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::nccl::dynamic_loader::DynamicLoader;
use crate::nccl::nccl_files;
use crate::nccl::release::NcclRelease;
use crate::nccl::{cache, stock_library};
use crate::system::root::Root;

/// The file `given`, or that of `FERRITE_NCCL`, or of the release that plugins are compared with.
///
/// # Errors
/// As [`cache::find`].
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf> {
    let is_named = given.is_some() || std::env::var_os("FERRITE_NCCL").is_some_and(|value| !value.is_empty());
    if is_named { cache::find(given) } else { of_release(NcclRelease::DEFAULT) }
}

/// The library of `release`: out of the cache, or one of this machine, as of PyTorch; else it is fetched.
///
/// # Errors
/// As [`cache::fetched`].
pub(super) fn of_release(release: NcclRelease) -> Result<PathBuf> {
    if !cache::cached(release).is_ok_and(|path| path.exists())
        && let Some(path) = installed(release)
    {
        log::info!("using NCCL {release} of this machine: {}", path.display());
        return Ok(path);
    }
    cache::fetched(release)
}

/// That of this machine, where the loader and Python look.
fn installed(release: NcclRelease) -> Option<PathBuf> {
    let env = std::env::vars().collect();
    let (root, folder) = (Root::new("/"), std::env::current_dir().ok()?);
    let files = nccl_files::find(DynamicLoader { root: &root, env: &env, folder: &folder });
    let says_so = |(major, minor, patch)| format!("{major}.{minor}.{patch}") == release.text;
    let mut paths = files.into_iter().filter(|file| file.version.is_some_and(says_so)).map(|file| file.path);
    paths.find(|path| stock_library::verify(path).is_ok_and(|found| found == release))
}
