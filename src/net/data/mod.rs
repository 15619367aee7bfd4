//! The data path: sending, receiving, flushing, and the clear-to-sends.

pub mod cts_sender;
pub mod exclusive_cell;
pub mod flush;
pub mod probe;
pub mod receiver;
pub mod sender;
pub mod sticky_error;
