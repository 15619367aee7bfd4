//! The arguments that name a transport.

use std::path::PathBuf;

use clap::Args;

use crate::cli::stock;
use crate::error::Result;
use crate::nccl::library::{self, Source};
use crate::nccl::release::NcclRelease;
use crate::system::dist::Dist;

#[derive(Debug, Args)]
pub(super) struct SourceArgs {
    #[command(flatten)]
    transport: TransportArgs,
    /// The version of the plugin's interface [default: 8, as NCCL 2.21.5 takes; the highest where there is no 8]
    #[arg(long, value_name = "N", conflicts_with_all = ["stock", "loader"], value_parser = clap::value_parser!(u32).range(8..=12))]
    abi: Option<u32>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct TransportArgs {
    /// A plugin's shared object [default: ../lib/libnccl-net.so beside this program]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// The built-in IB transport: of NCCL 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.30.7 or 2.32.3 out of the cache (fetched if need be), or of a
    /// libnccl.so.2 [default: as --nccl of `compare`]
    #[arg(long, value_name = "VERSION|LIBNCCL", num_args = 0..=1, value_parser = parse_stock)]
    stock: Option<Option<Stock>>,
    /// What the loader of NCCL 2.21.5 (or of the libnccl.so.2 that FERRITE_NCCL names) makes of this value of NCCL_NET_PLUGIN
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
            TransportArgs { stock: Some(None), .. } => Ok(Source::stock(stock::find(None)?)),
            TransportArgs { stock: Some(Some(Stock::File(path))), .. } => Ok(Source::stock(stock::find(Some(&path))?)),
            TransportArgs { stock: Some(Some(Stock::Release(release))), .. } => {
                Ok(Source::stock(stock::of_release(release)?))
            }
            TransportArgs { loader: Some(plugin), .. } => {
                if plugin.contains('/') && !plugin.contains(',') {
                    library::require_plugin(plugin.as_ref(), None)?;
                }
                let nccl = stock::find(None)?;
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
    if text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return parse_release(text).map(Stock::Release);
    }
    Ok(Stock::File(text.into()))
}

pub(super) fn parse_release(text: &str) -> std::result::Result<NcclRelease, String> {
    NcclRelease::named(text).map_err(|problem| problem.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_or_a_file() {
        assert_eq!(parse_stock("2.21.5"), Ok(Stock::Release(NcclRelease::DEFAULT)));
        assert_eq!(parse_stock("./2.21.5"), Ok(Stock::File("./2.21.5".into())));
        assert_eq!(parse_stock("libnccl.so.2"), Ok(Stock::File("libnccl.so.2".into())));
        assert!(
            parse_stock("2.99.1")
                .is_err_and(|words| words.contains("known are 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.30.7, 2.32.3"))
        );
    }
}
