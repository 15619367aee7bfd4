//! What threads of Ferrite's do, and what they are told.
//!
//! | file | what it is |
//! |---|---|
//! | [`watcher`] | the thread that waits: for [`device_events`], for control connections, for [`periodic`] tasks |
//! | [`workers`] | threads for what takes long and is rare: recovering connections |
//! | [`cq_owners`], [`port_listeners`], [`weak_registry`] | what receives a device's failure |
//! | [`notices`] | lines for the log that many connections would write at once |
//! | `signals` | these threads run no signal handlers of the host process |

pub mod cq_owners;
pub mod device_events;
pub mod notices;
pub mod periodic;
pub mod port_listeners;
pub(super) mod signals;
pub mod watcher;
pub mod weak_registry;
pub mod workers;
