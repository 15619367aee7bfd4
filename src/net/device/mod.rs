//! Network devices as NCCL sees them: cards, their ports, and GPUDirect RDMA.
//!
//! | file | contents |
//! | --- | --- |
//! | [`card`], [`open_device`] | what libibverbs opens as one device, and each time that it was opened |
//! | [`card_port`], [`gid_table`] | an active port of a card, and its addresses |
//! | [`nic`] | a device as NCCL sees it: one port, or several |
//! | [`pairing`], [`networks`] | which own port, and which device, is near the peer's |
//! | [`conn_memory`] | the memory that NCCL has registered for a connection |
//! | [`gdr`] | whether cards can register GPU memory |
//! | [`round_trips`] | measured round trips to peers |
//!
//! A card persists when its device is lost; the returning device is opened again, as another
//! [`open_device::OpenDevice`]. Code that creates an object on a card uses the device that is open
//! then.

pub mod card;
pub mod card_port;
pub mod conn_memory;
pub mod gdr;
pub mod gid_table;
pub mod networks;
pub mod nic;
pub mod open_device;
pub mod pairing;
pub mod round_trips;
