//! Ferrite's background threads, and what they receive.
//!
//! | file | contents |
//! | --- | --- |
//! | [`watcher`] | the thread that waits: for [`device_events`], for control connections, for [`periodic`] tasks |
//! | [`workers`] | threads for rare and slow work: recovering connections |
//! | [`cq_owners`], [`port_listeners`], [`weak_registry`] | receivers of a device's failure |
//! | [`notices`] | log lines that many connections would write at once |
//! | `signals` | keeps the host's signal handlers off these threads |

pub mod cq_owners;
pub mod device_events;
pub mod notices;
pub mod periodic;
pub mod port_listeners;
pub(super) mod signals;
pub mod watcher;
pub mod weak_registry;
pub mod workers;
