//! All drivers that there are.

use crate::drivers::driver::Driver;
use crate::drivers::{bnxt_re, efa, erdma, hns, ionic, irdma, mana, mlx5, own, rxe};
use crate::host::env;

/// Its own, which needs no name, and the others.
static OWN: Driver = own::DRIVER;
static ALL: [Driver; 15] = [
    bnxt_re::DRIVER,
    efa::DRIVER,
    erdma::DRIVER,
    hns::DRIVER,
    ionic::DRIVER,
    irdma::DRIVER,
    mana::DRIVER,
    mlx5::PLAIN,
    mlx5::CX4,
    mlx5::CX5,
    mlx5::CX6,
    mlx5::CX6_DX,
    mlx5::CX7,
    mlx5::CX8,
    rxe::DRIVER,
];

/// The one that devices have of which nothing is said.
pub(crate) fn own() -> &'static Driver {
    &OWN
}

/// `SOFTRNIC_DRIVER`. The error is a sentence.
pub(crate) fn from_env() -> Result<&'static Driver, String> {
    let settings = ALL.iter().flat_map(|driver| driver.settings.iter().chain(driver.infiniband_settings));
    debug_assert!(settings.into_iter().all(|(name, _)| env::KNOWN.contains(name)), "a driver sets what nobody reads");
    let Some(name) = env::text("SOFTRNIC_DRIVER")? else { return Ok(&OWN) };
    let names: Vec<&str> = ALL.iter().map(|driver| driver.name).collect();
    let found = ALL.iter().find(|driver| driver.name == name);
    found.ok_or_else(|| format!("SOFTRNIC_DRIVER={name:?}: must be one of {}", names.join(", ")))
}
