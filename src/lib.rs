//! Ferrite.
pub mod abi;
pub mod error;
pub mod host;
pub mod net;
pub mod proto;
pub mod verbs;
