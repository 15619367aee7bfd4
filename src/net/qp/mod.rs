//! The queue pairs of a connection, and how they are connected.

pub mod connect;
pub mod set;
