//! The arguments that name a transport.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::nccl::plugin_search::DynamicLoader;
use crate::nccl::release::NcclRelease;
use crate::nccl::{library, plugin_search, release};
use crate::system::dist::{Dist, Root};
use crate::verbs::Verbs;

#[derive(Debug, Args)]
pub(super) struct SourceArgs {
    #[command(flatten)]
    transport: TransportArgs,
    /// The version of the plugin's interface [default: 8, as NCCL 2.21.5 takes; the highest where
    /// there is no 8]
    #[arg(long, value_name = "N", conflicts_with_all = ["stock", "loader"], value_parser = clap::value_parser!(u32).range(8..=12))]
    abi: Option<u32>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct TransportArgs {
    /// A plugin's shared object [default: ../lib/libnccl-net.so beside this program]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// The built-in IB transport: of NCCL 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.29.7, 2.30.7,
    /// 2.31.2 or 2.32.3 out of the cache (fetched if need be), or of a libnccl.so.2 [default: as
    /// --nccl of `compare`]
    #[arg(long, value_name = "VERSION|LIBNCCL", num_args = 0..=1, value_parser = parse_stock)]
    stock: Option<Option<Stock>>,
    /// What the loader of NCCL 2.21.5 (or of the libnccl.so.2 that FERRITE_NCCL names) makes of
    /// this value of NCCL_NET_PLUGIN
    #[arg(long, value_name = "NCCL_NET_PLUGIN")]
    loader: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stock {
    Release(NcclRelease),
    File(PathBuf),
}

impl SourceArgs {
    pub(super) fn source(self) -> Result<Source> {
        let abi = self.abi;
        match self.transport {
            TransportArgs { stock: Some(None), .. } => Ok(Source::stock(find(None)?)),
            TransportArgs { stock: Some(Some(Stock::File(path))), .. } => {
                Ok(Source::stock(find(Some(&path))?))
            }
            TransportArgs { stock: Some(Some(Stock::Release(release))), .. } => {
                Ok(Source::stock(of_release(release)?))
            }
            TransportArgs { loader: Some(plugin), .. } => {
                if plugin.contains('/') && !plugin.contains(',') {
                    library::require_plugin(plugin.as_ref(), None)?;
                }
                let nccl = find(None)?;
                library::require_takeable(&nccl, &plugin)?;
                Ok(Source::Loader { nccl, plugin })
            }
            TransportArgs { plugin, .. } => {
                let path = plugin.map_or_else(|| Dist::find()?.plugin(), Ok)?;
                library::require_plugin(&path, abi)?;
                Ok(Source::Plugin { path, abi })
            }
        }
    }
}

/// `2.28.9` is a release, anything else a file.
pub(super) fn parse_stock(text: &str) -> std::result::Result<Stock, String> {
    if text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
    {
        return parse_release(text).map(Stock::Release);
    }
    Ok(Stock::File(text.into()))
}

pub(super) fn parse_release(text: &str) -> std::result::Result<NcclRelease, String> {
    NcclRelease::named(text).map_err(|problem| problem.to_string())
}

/// The file `given`, or that of `FERRITE_NCCL`, or of the release that plugins are compared with.
///
/// # Errors
/// As [`release::find`].
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf> {
    let is_named =
        given.is_some() || std::env::var_os("FERRITE_NCCL").is_some_and(|value| !value.is_empty());
    if is_named { release::find(given) } else { of_release(NcclRelease::DEFAULT) }
}

/// The library of `release`: out of the cache, or one of this machine, as of PyTorch; else it is
/// fetched.
///
/// # Errors
/// As [`release::fetched`].
pub(super) fn of_release(release: NcclRelease) -> Result<PathBuf> {
    if !release::cached(release).is_ok_and(|path| path.exists())
        && let Some(path) = installed(release)
    {
        log::info!("using NCCL {release} of this machine: {}", path.display());
        return Ok(path);
    }
    release::fetched(release)
}

/// That of this machine, where the loader and Python look.
fn installed(release: NcclRelease) -> Option<PathBuf> {
    let env = std::env::vars().collect();
    let (root, folder) = (Root::new("/"), std::env::current_dir().ok()?);
    let files = plugin_search::find(DynamicLoader { root: &root, env: &env, folder: &folder });
    let says_so = |(major, minor, patch)| format!("{major}.{minor}.{patch}") == release.text;
    let mut paths =
        files.into_iter().filter(|file| file.version.is_some_and(says_so)).map(|file| file.path);
    paths.find(|path| release::verify(path).is_ok_and(|found| found == release))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum VerbsName {
    /// The software RDMA device, private to each pair of processes
    Softrnic,
    /// The libibverbs of this machine
    System,
}

#[derive(Debug, Args)]
pub(super) struct DeviceArgs {
    /// Which libibverbs the transports get
    #[arg(long, value_enum, default_value = "softrnic")]
    verbs: VerbsName,
    /// Folder of the software device's libibverbs.so.1 [default: ../softrnic beside this program]
    #[arg(long, value_name = "DIR")]
    softrnic: Option<PathBuf>,
    /// Device index of rank 0 [default: 0]
    #[arg(long, value_name = "N")]
    dev0: Option<usize>,
    /// Device index of rank 1 [default: 1 if there are two devices, else 0]
    #[arg(long, value_name = "N")]
    dev1: Option<usize>,
}

impl DeviceArgs {
    pub(super) fn verbs(&self) -> Result<Verbs> {
        match (self.verbs, &self.softrnic) {
            (VerbsName::System, None) => Ok(Verbs::System),
            (VerbsName::System, Some(_)) => {
                Err(Error::Usage("--softrnic and --verbs system exclude each other".into()))
            }
            (VerbsName::Softrnic, Some(folder)) => Verbs::softrnic(folder),
            (VerbsName::Softrnic, None) => Verbs::softrnic(&Dist::find()?.softrnic()),
        }
    }

    pub(super) fn devices(&self) -> [Option<usize>; 2] {
        [self.dev0, self.dev1]
    }
}

/// `8`, `64K`, `4M`, `1G`, with or without a B or iB after it.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let upper = text.trim().to_ascii_uppercase();
    let bare = upper.trim_end_matches('B').trim_end_matches('I');
    let (digits, shift) = match bare.chars().last() {
        Some('K') => (&bare[..bare.len() - 1], 10),
        Some('M') => (&bare[..bare.len() - 1], 20),
        Some('G') => (&bare[..bare.len() - 1], 30),
        _ => (bare, 0),
    };
    let number: usize =
        digits.parse().map_err(|_| format!("{text} is no size, as 8, 64K or 4M are"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if (1..=128 << 20).contains(&bytes) => Ok(bytes),
        _ => Err(format!("{text} is not between 1 and 128M")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_or_a_file() {
        assert_eq!(parse_stock("2.21.5"), Ok(Stock::Release(NcclRelease::DEFAULT)));
        assert_eq!(parse_stock("./2.21.5"), Ok(Stock::File("./2.21.5".into())));
        assert_eq!(parse_stock("libnccl.so.2"), Ok(Stock::File("libnccl.so.2".into())));
        assert!(parse_stock("2.99.1").is_err_and(|words| {
            words.contains(
                "known are 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.29.7, 2.30.7, 2.31.2, 2.32.3",
            )
        }));
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("4MiB"), Ok(4 << 20));
        for wrong in ["", "K", "-1", "0", "1T", "1G", "99999999999999999999"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
