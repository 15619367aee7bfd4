//! What the kernel's own counters of a device say: evidence that the bytes passed through it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::transport::instance::Properties;

/// Counters of one port, or their growth. Only kernel devices have them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// The device's name.
    pub device: String,
    /// The counters that were read, and their values (`port_*_data` count 4-byte words).
    pub counters: Vec<(String, u64)>,
}

/// Counters of bytes or packets, by what drivers call them.
const NAMES: [&str; 4] =
    ["counters/port_xmit_data", "counters/port_rcv_data", "hw_counters/sent_pkts", "hw_counters/rcvd_pkts"];

impl PortCounters {
    /// Reads the counters of the port; `None` where there are none.
    pub fn read(device: &Properties) -> Option<Self> {
        let port = Path::new("/sys/class/infiniband").join(&device.name).join("ports").join(device.port.to_string());
        Self::read_from(&port, &device.name)
    }

    fn read_from(port: &Path, device: &str) -> Option<Self> {
        let value = |name: &&str| {
            let text = std::fs::read_to_string(port.join(name)).ok()?;
            Some(((*name).to_owned(), text.trim().parse().ok()?))
        };
        let counters: Vec<(String, u64)> = NAMES.iter().filter_map(value).collect();
        (!counters.is_empty()).then(|| Self { device: device.into(), counters })
    }

    /// How much they have grown since this reading.
    pub fn until_now(&self, device: &Properties) -> Option<Self> {
        let now = Self::read(device)?;
        let counters = self.counters.iter().zip(now.counters);
        Some(Self {
            device: now.device,
            counters: counters
                .map(|((name, before), (_, after))| (name.clone(), after.saturating_sub(*before)))
                .collect(),
        })
    }

    /// Whether any of them moved.
    pub fn moved(&self) -> bool {
        self.counters.iter().any(|(_, value)| *value > 0)
    }
}
