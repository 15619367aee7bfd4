//! Drivers of real cards: what their devices grant, and how they refuse. Each entry has what the
//! driver's sources say, and nothing else; docs/cards.md names the sources.

mod bnxt_re;
mod erdma;
mod ionic;
mod mlx5;
pub(crate) mod table;

use crate::drivers::table::Driver;
use crate::host;

/// Its own, which needs no name, and the others.
static OWN: Driver = table::OWN_DRIVER;
static ALL: [Driver; 15] = [
    bnxt_re::DRIVER,
    table::EFA_DRIVER,
    erdma::DRIVER,
    table::HNS_DRIVER,
    ionic::DRIVER,
    table::IRDMA_DRIVER,
    table::MANA_DRIVER,
    mlx5::PLAIN,
    mlx5::CX4,
    mlx5::CX5,
    mlx5::CX6,
    mlx5::CX6_DX,
    mlx5::CX7,
    mlx5::CX8,
    table::RXE_DRIVER,
];

/// The driver of devices by default.
pub(crate) fn own() -> &'static Driver {
    &OWN
}

/// `SOFTRNIC_DRIVER`. The error is a sentence.
pub(crate) fn from_env() -> Result<&'static Driver, String> {
    let settings =
        ALL.iter().flat_map(|driver| driver.settings.iter().chain(driver.infiniband_settings));
    debug_assert!(
        settings.into_iter().all(|(name, _)| host::KNOWN.contains(name)),
        "a driver sets what nobody reads"
    );
    let Some(name) = host::text("SOFTRNIC_DRIVER")? else { return Ok(&OWN) };
    let names: Vec<&str> = ALL.iter().map(|driver| driver.name).collect();
    let found = ALL.iter().find(|driver| driver.name == name);
    found.ok_or_else(|| format!("SOFTRNIC_DRIVER={name:?}: must be one of {}", names.join(", ")))
}
