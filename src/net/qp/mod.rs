//! The queue pairs of a connection.
//!
//! [`wr_id`] ← [`failure`] ← [`set`] ← [`connect`].

pub mod connect;
pub mod failure;
pub mod set;
pub mod wr_id;
