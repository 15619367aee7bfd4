//! Connection set-up: `listen`, `connect` and `accept`.

pub mod connect;
pub mod connectors;
mod dials;
mod identity;
pub mod listen;
#[cfg(test)]
mod listen_tests;
pub mod nccl_comm;
mod rails;
mod summary;
mod waiting;
