//! Names of ports and devices, and the kinds of GIDs.

use std::fmt;

/// A port of a device: `softrnic1/2`. `rnic1/2` and `1/2` are understood as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Index of the device.
    pub device: usize,
    /// 1 or 2.
    pub port: u32,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "softrnic{}/{}", self.device, self.port)
    }
}

/// A device: `softrnic1`. `rnic1` and `1` are understood as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName(
    /// Its index.
    pub usize,
);

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "softrnic{}", self.0)
    }
}

/// What packets from a GID look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// The only kind of an InfiniBand port.
    InfiniBand,
    /// RoCE v1.
    RoceV1,
    /// RoCE v2.
    RoceV2,
}
