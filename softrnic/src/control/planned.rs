//! What a fabric will be like.

use crate::control::report::{Device, devices_of};
use crate::network::topology::Topology;
use crate::process::settings::Settings;
use crate::rules::environment::parse;

/// The devices that a fabric will have whose first process starts with this environment. The error is a sentence.
pub fn planned() -> Result<Vec<Device>, String> {
    let settings = Settings::from_env()?;
    let topology = Topology::decide(&settings.requested)?;
    settings.faults.map_or(Ok(Vec::new()), |rules| parse(&topology, &rules))?;
    Ok(devices_of(&topology))
}
