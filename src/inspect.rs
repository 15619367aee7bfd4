//! The machine as the plugin sees it. `ferrite doctor` looks at it through these parts, so that it
//! reports what the plugin will do and not what a second reading of the same files would. No
//! interface for others.

pub use crate::abi::nccl;
pub use crate::host::{conf_file, config, gid, hca, iface, random, variables};
pub use crate::net::device::{card_port, gdr};
pub use crate::proto::PROTOCOL_VERSION;
pub use crate::proto::explain::operation;
pub use crate::verbs::{completion_queue, context, library, memory, queue_pair};

/// Capacities of the queue pairs of a connection.
pub mod caps {
    pub use crate::net::data::cts_sender::RECEIVER_QP_CAPS;
    pub use crate::net::data::send::SENDER_QP_CAPS;
}

/// The file of statistics, for `ferrite top`.
pub mod stats {
    pub use crate::stats::{histogram, layout, lock};
}

/// Which build this is.
pub mod version {
    pub use crate::version::text;
}
