//! Which errors are waited out while a connection is set up: a port cannot be used just now, or a device fails.

use crate::error::Error;
use crate::net::device::nic::Nic;
use std::time::Instant;

/// Whether `error` is waited out until `deadline`. From then on the events of the devices of `nic` are taken, so that one that fails is
/// known to be lost, and is opened again.
pub(super) fn may_pass(nic: &Nic, error: &Error, deadline: Instant) -> bool {
    let is_waited_for = error.is_recoverable && nic.config.failover && Instant::now() < deadline;
    is_waited_for && nic.cards.iter().all(|card| card.watcher().is_ok())
}

/// `error`, which has been waited out in vain, if it is one that may pass.
pub(super) fn given_up(nic: &Nic, error: Error) -> Error {
    match error.is_recoverable && nic.config.failover {
        true => {
            error.context(format!("waited for it for FERRITE_HANDSHAKE_TIMEOUT={} s", nic.config.handshake_timeout_s))
        }
        false => error,
    }
}
