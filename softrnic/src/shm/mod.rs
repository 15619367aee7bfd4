//! The shared file that all processes of a fabric map: its locks, its layout, its entries. It knows
//! nothing of the processes, devices and queue pairs that use it.

pub(crate) mod file;
pub(crate) mod job;
pub(crate) mod recv_ring;
pub(crate) mod slots;
pub(crate) mod work;
