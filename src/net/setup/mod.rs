//! How a connection comes about: `listen`, `connect` and `accept`.

pub mod connect;
pub mod connectors;
pub mod listen;
