//! Acknowledgements: an object goes when the application has acknowledged all events of it that it was given.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::host::lock::lock;

/// Those of one object. Its fields that the application sees count the events that are acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    counting: Mutex<()>,
    counted: Condvar,
}

impl Acks {
    /// `count` more events are acknowledged.
    pub(crate) fn add(&self, acknowledged: &AtomicU32, count: u32) {
        let _guard = lock(&self.counting);
        acknowledged.fetch_add(count, SeqCst);
        self.counted.notify_all();
    }

    /// Waits until all are: of each kind the events that were given, and those that are acknowledged.
    pub(crate) fn wait(&self, kinds: &[(&AtomicU32, &AtomicU32)]) {
        let mut guard = lock(&self.counting);
        while kinds.iter().any(|(given, acknowledged)| given.load(SeqCst) != acknowledged.load(SeqCst)) {
            guard = self.counted.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
