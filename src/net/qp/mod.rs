//! The queue pairs of a connection.
//!
//! [`wr_id`] ← [`failure`], [`priority`], [`create`], `go_on` ← [`set`] ← [`connect`], [`fence`], [`reach`].

pub mod connect;
pub mod create;
pub mod failure;
pub mod fence;
mod go_on;
pub mod priority;
pub mod reach;
pub mod set;
pub mod wr_id;
