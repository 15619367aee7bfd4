//! What a worker process found when it had loaded its transport.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::nccl::library::Identity;
use crate::transport::instance::Properties;

/// What a worker found when it had loaded the transport: the evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadedTransport {
    /// The library and its vtable.
    pub identity: Identity,
    /// The version that the transport put into its log, next to its name.
    pub version: Option<String>,
    /// The libibverbs that was mapped after `init`.
    pub verbs: Vec<PathBuf>,
    /// All devices.
    pub devices: Vec<Properties>,
    /// The index of the one that was used.
    pub device: usize,
    /// The CPU this process keeps to.
    pub cpu: Option<usize>,
    /// How long loading took; ms.
    pub load_ms: f64,
    /// How long `init` took; ms.
    pub init_ms: f64,
}
