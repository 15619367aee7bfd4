//! The queue pairs of a connection.
//!
//! [`wr_id`] ← [`failure`], [`priority`], `go_on`, [`create`] ← [`init_rail`] ← [`set`] ← [`connect`], [`fence`], [`reach`].

pub mod connect;
pub mod create;
pub mod failure;
pub mod fence;
mod go_on;
pub mod init_rail;
pub mod priority;
pub mod reach;
pub mod set;
pub mod wr_id;
