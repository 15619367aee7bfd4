//! What happens to ports and devices: changed in the fabric, then told to every process.

use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use crate::abi::consts::event;
use crate::fabric::Fabric;
use crate::fabric::layout::PROCS;
use crate::fabric::slots::NEWS;
use crate::port::STATE_ACTIVE;

/// Adds an event for all who have the device open.
pub(crate) fn publish(fabric: &Fabric, kind: u32, device: usize, port: u32) {
    let header = fabric.header();
    {
        let _control = fabric.file.control();
        header.changes.fetch_add(1, SeqCst);
        let number = header.news_count.load(Acquire);
        let entry = u64::from(kind) | (device as u64) << 8 | u64::from(port) << 16;
        header.news[number as usize % NEWS].store(entry, Release);
        header.news_count.store(number + 1, SeqCst);
    }
    for index in 0..PROCS {
        let id = fabric.proc(index).id.load(Acquire);
        if id != 0 {
            fabric.ring(id);
        }
    }
}

/// Changes the state of a port, and tells if that was a change.
pub(crate) fn set_port(fabric: &Fabric, device: usize, port: u32, state: u32) {
    let before = fabric.port(device, port).state.swap(state, SeqCst);
    if before != state {
        let kind = if state == STATE_ACTIVE { event::PORT_ACTIVE } else { event::PORT_ERR };
        publish(fabric, kind, device, port);
    }
}

/// The device fails for good.
pub(crate) fn fail_device(fabric: &Fabric, device: usize) {
    if fabric.header().fatal[device].swap(1, SeqCst) == 0 {
        publish(fabric, event::DEVICE_FATAL, device, 0);
    }
}
