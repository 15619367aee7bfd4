//! Ferrite.
pub mod error;
pub mod proto;
pub mod verbs;
