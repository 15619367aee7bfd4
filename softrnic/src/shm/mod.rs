//! The shared file that all processes of a fabric map: its locks, its layout, its entries. It knows nothing of the
//! processes, devices and queue pairs that use it.

pub(crate) mod entries;
pub(crate) mod file;
pub(crate) mod holders;
pub(crate) mod job;
pub(crate) mod layout;
pub(crate) mod mark;
pub(crate) mod process_id;
pub(crate) mod record_lock;
pub(crate) mod recv_ring;
pub(crate) mod ring_pages;
pub(crate) mod slots;
pub(crate) mod srq_ring;
pub(crate) mod srq_slot;
pub(crate) mod work;
