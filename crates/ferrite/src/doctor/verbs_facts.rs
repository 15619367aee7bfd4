//! What libibverbs and the plugin's own code report of the RDMA devices, as a process of its own finds it out.

use serde::{Deserialize, Serialize};

/// Everything that was found out with libibverbs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct VerbsFacts {
    pub(crate) library: LibraryFacts,
    /// Why libibverbs gives no list of devices.
    pub(crate) no_list: Option<String>,
    pub(crate) devices: Vec<DeviceFacts>,
    /// Why devices of libibverbs' list cannot be opened; each names its device.
    pub(crate) unopened: Vec<String>,
    /// The ports that the plugin would use.
    pub(crate) rails: Vec<RailFacts>,
    /// The traffic class that the settings give to packets.
    pub(crate) traffic_class: u8,
}

/// The libibverbs that is loaded.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct LibraryFacts {
    /// Its file.
    pub(crate) path: String,
    /// Other files of libibverbs in the same process.
    #[serde(default)]
    pub(crate) others: Vec<String>,
    /// The optional functions that it lacks, each with the version that brought it.
    pub(crate) missing: Vec<(String, String)>,
}

/// A device that was opened.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DeviceFacts {
    pub(crate) name: String,
    pub(crate) firmware: String,
    pub(crate) max_queue_pairs: i64,
    pub(crate) max_memory_regions: i64,
    pub(crate) ports: Vec<PortFacts>,
    /// Whether it registers dma-bufs.
    pub(crate) takes_dmabuf: bool,
    /// The trial registration of host memory: bytes, or the error.
    pub(crate) registration: Option<Result<u64, String>>,
    /// The trial queue pair: bytes of inline data that were granted, or the error.
    pub(crate) queue_pair: Option<Result<u32, String>>,
}

/// A port, as `ibv_query_port` reports it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PortFacts {
    pub(crate) port: u8,
    /// The query failed for this reason; the rest is not filled in.
    pub(crate) error: Option<String>,
    pub(crate) active: bool,
    /// `InfiniBand`, `Ethernet`, or the number of another one.
    pub(crate) link_layer: String,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    /// Bytes.
    pub(crate) mtu: u32,
    /// Bytes.
    pub(crate) max_mtu: u32,
    pub(crate) pkey_count: u16,
    /// The entry of the partition key table that the settings name could be used for a queue pair; or the error.
    pub(crate) pkey: Option<Result<u16, String>>,
}

/// A port that the plugin would use, and how.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RailFacts {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) speed_mbps: u32,
    pub(crate) infiniband: bool,
    /// How the plugin describes it: its GID with the reason of the choice, or the LID.
    pub(crate) description: String,
    /// The GID that it uses, or why there is none.
    pub(crate) gid: Option<Result<GidFacts, String>>,
}

/// An entry of a GID table.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct GidFacts {
    pub(crate) index: u8,
    pub(crate) address: String,
    pub(crate) roce_version: Option<u8>,
    pub(crate) link_local: bool,
    /// `NCCL_IB_ADDR_RANGE` asks for another one.
    pub(crate) is_outside_range: bool,
}

impl PortFacts {
    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.link_layer == "InfiniBand"
    }
}

impl RailFacts {
    /// `mlx5_0:1`.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.device, self.port)
    }
}

impl VerbsFacts {
    /// Each port that could be queried, with its name, such as `mlx5_0:1`.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (String, &DeviceFacts, &PortFacts)> {
        let ports = self.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        ports
            .filter(|(_, port)| port.error.is_none())
            .map(|(device, port)| (format!("{}:{}", device.name, port.port), device, port))
    }

    /// Whether the plugin uses this port.
    pub(crate) fn is_used(&self, device: &DeviceFacts, port: &PortFacts) -> bool {
        self.rails.iter().any(|rail| rail.device == device.name && rail.port == port.port)
    }
}
