//! Reading the names of ports and devices.

use std::str::FromStr;

use crate::control::error::Error;
use crate::control::names::{DeviceName, PortName};
use crate::network::port_id;

impl FromStr for PortName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let (device, port) = port_id::parse_name(name).ok_or_else(|| Error::Name(name.to_owned(), "softrnic0/1"))?;
        Ok(Self { device, port })
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        port_id::parse_device(name).map(Self).ok_or_else(|| Error::Name(name.to_owned(), "softrnic0"))
    }
}
