//! The connections that `connect` is about to make, by the numbers that NCCL's handles keep.
//!
//! NCCL may give up on one and not say so. There is no limit to how long a peer may take to accept, so what bounds them is
//! that NCCL asks: one that nobody has asked for so long is dropped, with its queue pairs, and its peer is sent a Goodbye. If NCCL asks
//! for it after all, the connection is begun anew, which takes a moment and harms nothing. A [watcher](crate::net::background::watcher) looks
//! after them, and so does every call that begins something.

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
    /// Takes one off the list, to go on with it; 0 is no number.
    pub fn take(&self, number: u64) -> Option<Connector> {
        if number == 0 { None } else { self.lock().remove(&number) }
    }

    /// Puts one on the list until it is asked for again.
    pub fn put(&self, number: u64, connector: Connector) {
        self.lock().insert(number, connector);
    }

    /// Drops those that nobody asks for any more, once the list is unlocked; whether there are others.
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
