//! The queue pairs of a connection.
//!
//! [`wr_id`] ← [`failure`], [`priority`], `behind_error`, [`init_rail`] ← [`set`] ←
//! [`connect`], [`fence`], [`reach`].

mod behind_error;
pub mod connect;
pub mod failure;
pub mod fence;
pub mod init_rail;
pub mod priority;
pub mod reach;
pub mod set;
pub mod wr_id;
