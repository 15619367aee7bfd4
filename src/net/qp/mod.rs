//! The queue pairs of a connection.
//!
//! [`wr_id`] ← [`failure`], [`priority`] ← [`set`] ← [`connect`], [`fence`], [`reach`].

pub mod connect;
pub mod failure;
pub mod fence;
pub mod priority;
pub mod reach;
pub mod set;
pub mod wr_id;
