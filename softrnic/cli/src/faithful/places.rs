//! Options for where the devices seem to be.

use std::path::{Path, PathBuf};

use clap::Args;
use ibverbs::control::DeviceName;

/// Where on the PCI bus the devices seem to be.
#[derive(Debug, Args)]
pub(crate) struct PciPlaces {
    /// PCI device of a device, with --faithful: softrnic0=/sys/devices/pci0000:00/0000:00:03.0
    #[arg(long, value_name = "DEVICE=PATH", value_parser = parse_pci)]
    pub(super) pci: Vec<(DeviceName, PathBuf)>,
    /// Devices 0 and 1 are functions of one card, 2 and 3 of the next, …
    #[arg(long)]
    pub(crate) same_card: bool,
}

fn parse_pci(text: &str) -> Result<(DeviceName, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("must be such as softrnic0=/sys/devices/…")?;
    let name = name.parse().map_err(|error: ibverbs::control::Error| error.to_string())?;
    let whole = Path::new(path).canonicalize().map_err(|error| format!("{path}: {error}"))?;
    if whole.join("class").exists() { Ok((name, whole)) } else { Err(format!("{path}: no PCI device")) }
}
