//! The log of port and device events. The process that changes a port or device adds an event; every process that has the
//! device open reads it.

use std::sync::atomic::Ordering::SeqCst;

use crate::limits::PROCS;
use crate::network::port_id::PortId;
use crate::process::fabric::Fabric;
use crate::shm::file::ControlLock;
use crate::shm::slots::EVENTS;

/// One event. Port 0: it concerns the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortEvent {
    pub(crate) kind: u32,
    pub(crate) port: PortId,
}

impl PortEvent {
    fn to_word(self) -> u64 {
        u64::from(self.kind) | (self.port.device as u64) << 8 | u64::from(self.port.port) << 16
    }

    fn from_word(word: u64) -> Self {
        let [kind, device, port, ..] = word.to_le_bytes();
        Self { kind: u32::from(kind), port: PortId { device: usize::from(device), port: u32::from(port) } }
    }
}

impl Fabric {
    /// Has every route checked anew. The caller has made the change already.
    pub(crate) fn note_change(&self, _control: &ControlLock<'_>) {
        self.header().changes.fetch_add(1, SeqCst);
    }

    /// Adds an event and wakes all processes. The change itself can be seen already.
    pub(crate) fn log_event(&self, _control: &ControlLock<'_>, event: PortEvent) {
        let header = self.header();
        let number = header.event_count.load(SeqCst);
        header.events[number as usize % EVENTS].store(event.to_word(), SeqCst);
        header.event_count.store(number + 1, SeqCst);
        for id in (0..PROCS).map(|index| self.proc(index).id.load(SeqCst)).filter(|&id| id != 0) {
            self.wake(id);
        }
    }

    /// Events since number `since`, and the number to ask from next time. Only the last [`EVENTS`] are kept.
    pub(crate) fn events_since(&self, since: u64) -> (Vec<PortEvent>, u64) {
        let header = self.header();
        let count = header.event_count.load(SeqCst);
        let oldest = since.max(count.saturating_sub(EVENTS as u64));
        let words = (oldest..count).map(|number| header.events[number as usize % EVENTS].load(SeqCst));
        (words.map(PortEvent::from_word).collect(), count)
    }
}
