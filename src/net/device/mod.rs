//! Network devices as NCCL sees them: cards, their ports, and GPUDirect RDMA.
//!
//! [`gdr`] and [`open_device`] ← [`card`] ← [`gid_table`] ← [`rail`] ← [`pairing`] and
//! [`round_trips`] ← [`nic`] ← [`networks`] and [`conn_memory`].
//!
//! A card persists when its device is lost; the returning device is opened again, as another
//! [`open_device::OpenDevice`]. Code that creates an object on a card uses the device that is open
//! then.

pub mod card;
pub mod conn_memory;
pub mod gdr;
pub mod gid_table;
pub mod networks;
pub mod nic;
pub mod open_device;
pub mod pairing;
pub mod rail;
pub mod round_trips;
