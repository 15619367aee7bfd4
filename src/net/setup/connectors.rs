//! Unfinished connections of `connect`, by the numbers in NCCL's handles.
//!
//! NCCL may abandon a connection silently, and a peer may take any time to accept. So the bound is
//! that NCCL polls: a connection that NCCL has not polled for long is dropped with its queue pairs,
//! and its peer gets a Goodbye. If NCCL polls it after all, the connection begins anew, which is
//! quick and harmless. A [watcher](crate::net::background::watcher) checks for these, and so does
//! every call that begins a connection.

use super::connect::Connector;
use crate::net::background::periodic::PeriodicTask;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The list.
#[derive(Debug, Default)]
pub struct Connectors {
    by_number: Mutex<HashMap<u64, Connector>>,
}

impl Connectors {
    /// Takes a connection off the list, to continue it; 0 is no number.
    pub fn take(&self, number: u64) -> Option<Connector> {
        if number == 0 { None } else { self.lock().remove(&number) }
    }

    /// Puts a connection on the list until it is polled again.
    pub fn put(&self, number: u64, connector: Connector) {
        self.lock().insert(number, connector);
    }

    /// Drops abandoned connections, once the list is unlocked. Returns whether others are left.
    pub fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut connectors = self.lock();
        let abandoned: Vec<_> = connectors.extract_if(|_, c| c.is_abandoned(now)).collect();
        let are_left = !connectors.is_empty();
        drop(connectors);
        drop(abandoned);
        are_left
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Connector>> {
        self.by_number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeriodicTask for Connectors {
    fn run(&self) -> bool {
        self.sweep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_looked_after_once_no_connection_is_about_to_be_made() {
        assert!(!Connectors::default().run());
    }
}
