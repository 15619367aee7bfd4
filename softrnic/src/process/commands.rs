//! Commands to a card: calls that its firmware carries out, while the caller waits. Counted for each process.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{hint, thread};

use crate::host::clock::now_ns;
use crate::process::fabric::Fabric;
use crate::shm::process_id::slot_of;

/// A kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    CreateQp,
    ModifyQp,
    DestroyQp,
    CreateCq,
    DestroyCq,
    RegisterMr,
    DeregisterMr,
    AllocPd,
    AllocTd,
}

/// A sleep ends so much too late, at most.
const SLACK_NS: u64 = 100_000;

impl Fabric {
    /// This process has queried a port.
    pub(crate) fn count_port_query(&self) {
        self.proc(slot_of(self.me)).port_queries.fetch_add(1, Relaxed);
    }

    /// This process has had a card carry out a command. Takes as long as `SOFTRNIC_COMMAND_US` says.
    pub(crate) fn count_command(&self, command: Command) {
        self.proc(slot_of(self.me)).commands[command as usize].fetch_add(1, Relaxed);
        let ns = self.settings.command_us * 1000;
        if ns == 0 {
            return;
        }
        let end = now_ns() + ns;
        if ns > SLACK_NS {
            thread::sleep(Duration::from_nanos(ns - SLACK_NS));
        }
        while now_ns() < end {
            hint::spin_loop();
        }
    }
}
