//! The built plugin, called as NCCL calls it, on the software device. One program: linking one for
//! each file took longer than running it.

mod async_events;
#[path = "../common/mod.rs"]
mod common;
mod connect_calls;
mod connect_errors;
mod connection_errors;
mod control_acceptor;
mod control_connections;
mod control_recovery;
mod control_reset;
mod deaths;
mod device_order;
mod drivers;
mod gids;
mod gpu;
mod lanes;
mod missing_devices;
mod nccl_log;
mod networks;
mod port_scan;
mod qp_connect;
mod rails;
mod registration;
mod resources;
mod set_up_pauses;
mod set_up_times;
mod settings;
mod settings_sources;
mod slow_peers;
mod statistics;
mod transport;
mod unauthenticated_clients;
mod versions;
mod vtable_calls;
mod ways;
