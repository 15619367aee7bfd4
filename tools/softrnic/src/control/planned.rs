//! What a fabric will be like.

use crate::control::report::{Device, devices_of};
use crate::network::topology::Topology;
use crate::process::settings::Settings;

/// The devices that a fabric will have whose first process starts with this environment. The error is a sentence.
pub fn planned() -> Result<Vec<Device>, String> {
    let settings = Settings::from_env()?;
    Ok(devices_of(&Topology::decide(&settings.requested)?))
}
