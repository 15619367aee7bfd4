//! The hold on a UD queue pair while the bytes of a datagram are copied through the shared file.
//!
//! Many send to it, and each enters and leaves it several times until its bytes are in place. Meanwhile the receive is that datagram's:
//! other senders find the hold and come again. It ends with its holder, and its owner takes it away when it resets the queue pair.

use std::sync::atomic::Ordering::SeqCst;

use crate::process::fabric::Fabric;
use crate::shm::slots::QpSlot;

/// A hold on a queue pair. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    slot: &'static QpSlot,
    name: u64,
}

/// The name that the queue pair `qpn` of `device` holds others by.
pub(crate) fn name_of(fabric: &Fabric, device: usize, qpn: u32) -> u64 {
    u64::from(fabric.me) | u64::from(qpn) << 32 | (device as u64) << 56
}

/// Whether another live process than the sender `name` has its hold on `slot`.
pub(crate) fn is_held_by_another(fabric: &Fabric, slot: &QpSlot, name: u64) -> bool {
    let holder = slot.holder.load(SeqCst);
    holder != 0 && holder != name && fabric.live_process(holder as u32).is_some()
}

impl Hold {
    /// Takes the hold on the queue pair that was entered, which nobody else has.
    pub(crate) fn take(slot: &'static QpSlot, name: u64) -> Self {
        slot.holder.store(name, SeqCst);
        Self { slot, name }
    }

    /// Whether it is still ours.
    pub(crate) fn is_kept(&self) -> bool {
        self.slot.holder.load(SeqCst) == self.name
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.slot.holder.compare_exchange(self.name, 0, SeqCst, SeqCst);
    }
}
