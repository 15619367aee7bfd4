//! Memory registration: the cache of registrations of a card, and what NCCL holds of one.

pub mod cache;
pub mod handle;
pub mod region;
