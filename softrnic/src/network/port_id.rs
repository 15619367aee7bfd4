//! Ports: which one, and what they are called.

use crate::limits::{DEVICES, PORTS};

/// A port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PortId {
    pub(crate) device: usize,
    pub(crate) port: u32,
}

impl PortId {
    /// The name of queue pair `qpn` at this port, see `QpSlot::peer`.
    pub(crate) fn qp_name(self, qpn: u32) -> u64 {
        u64::from(self.port) << 40 | (self.device as u64) << 32 | u64::from(qpn)
    }

    /// The port in the name of a queue pair.
    pub(crate) fn of_name(name: u64) -> Self {
        Self { device: (name >> 32) as usize & 0xff, port: (name >> 40) as u32 & 0xff }
    }
}

/// Device index and port that a name means: `softrnic1/2`, `rnic1/2` or `1/2`.
pub(crate) fn parse_name(name: &str) -> Option<(usize, u32)> {
    let (device, port) = name.split_once('/')?;
    let port = port.parse().ok().filter(|p| (1..=PORTS as u32).contains(p))?;
    Some((parse_device(device)?, port))
}

/// Device index that a name means: `softrnic1`, `rnic1` or `1`.
pub(crate) fn parse_device(name: &str) -> Option<usize> {
    let digits = ["softrnic", "rnic"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    digits.parse().ok().filter(|&d| d < DEVICES)
}
